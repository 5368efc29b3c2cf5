# shellcheck shell=bash
# Sourced by `check`: runs steps, counts what passed, failed and was skipped, and says so at the end.
#
# A step is a command. Its output goes to a log; the terminal gets one line, and the end of the log when
# the step failed. Counting:
# - `step` counts one for the whole command, `suite` counts the tests that its runner says it ran;
# - exit status 77 means that the step skipped itself;
# - a line `SKIPPED: NAME: REASON` anywhere in a log is a skip: NAME counts as skipped, never as passed,
#   and REASON must be on the list in expected-skips.txt, or the whole run fails.

passed=0
failed=0
skipped=0
failures=()
logs=${CARGO_TARGET_DIR:-target}/check
mkdir -p "$logs"

# step NAME COMMAND...: one thing that passes or fails as a whole.
step() {
  local name=$1 status skips_here
  shift
  run_logged "$name" "$@"
  status=$?
  skips_here=$(collect_skips "$name" | wc -l)
  skipped=$((skipped + skips_here))
  if [ "$status" -eq 0 ]; then
    passed=$((passed + 1))
    say ok "$name"
  elif [ "$status" -eq 77 ] && [ "$skips_here" -gt 0 ]; then
    say skip "$name" "$(announced_skips "$name" | sed 's/^[^ ]*: //' | head -n 1)"
  else
    count_failure "$name" 1
  fi
}

# suite NAME COMMAND...: a command that ends with the closing lines of nextest or of cargo test.
suite() {
  local name=$1 status good bad skips_here announced
  shift
  run_logged "$name" "$@"
  status=$?
  read -r good bad < <(count_tests "$logs/$name.log")
  skips_here=$(collect_skips "$name" | wc -l)
  # Tests that announced a skip have ended well for their runner; ignored ones it has not counted at all.
  announced=$(announced_skips "$name" | wc -l)
  good=$((good > announced ? good - announced : 0))
  passed=$((passed + good))
  skipped=$((skipped + skips_here))
  if [ "$status" -ne 0 ]; then
    count_failure "$name" $((bad > 0 ? bad : 1))
  elif [ $((good + skips_here)) -eq 0 ] && [ "${MAY_BE_EMPTY:-no}" = no ]; then
    echo "no test ran" >> "$logs/$name.log"
    count_failure "$name" 1
  else
    say ok "$name" "$good passed, $skips_here skipped"
  fi
}

# Runs the command with its output in the step's log; sets `seconds`.
run_logged() {
  local name=$1 begin status
  shift
  begin=$(date +%s%N)
  printf '$ %s\n' "$*" > "$logs/$name.log"
  "$@" < /dev/null >> "$logs/$name.log" 2>&1
  status=$?
  seconds=$((($(date +%s%N) - begin) / 100000000))
  seconds=$((seconds / 10)).$((seconds % 10))
  return "$status"
}

say() {
  printf '%-5s %-12s %8s s  %s\n' "$1" "$2" "$seconds" "${3:-}"
}

count_failure() {
  failed=$((failed + $2))
  failures+=("$1")
  mapfile -t -O "${#failures[@]}" failures < <(failed_tests "$1")
  say FAIL "$1" "$logs/$1.log"
  tail -n "${CHECK_TAIL:-80}" "$logs/$1.log" | sed 's/^/      | /'
}

# Prints "PASSED FAILED". nextest's summary wins: its tests may print lines that look like cargo test's.
count_tests() {
  awk '
    /^ *Summary \[.*tests? run: / {
      line = $0
      sub(/.*\] */, "", line)
      split(line, words, " ")
      run = words[1]
      sub(/\/.*/, "", run)
      sub(/.*tests? run: /, "", line)
      nextest = 1
      ran += run
      well += line + 0
    }
    /^test result: / {
      for (i = 1; i < NF; i++) {
        if ($(i + 1) ~ /^passed/) good += $i
        if ($(i + 1) ~ /^failed/) bad += $i
      }
    }
    END {
      if (nextest) { good = well; bad = ran - well }
      print good + 0, bad + 0
    }' "$1"
}

# `STEP: TEST`, once each, of those that did not pass, as nextest and cargo test name them.
failed_tests() {
  sed -nE \
    -e 's/^ *(FAIL|TIMEOUT|SIG[A-Z]+|ABORT) \[[^]]*\] (\([^)]*\) )?(.*)$/\3/p' \
    -e 's/^test (.*) \.\.\. FAILED$/\1/p' "$logs/$1.log" | awk -v step="$1" '!seen[$0]++ { print step ": " $0 }'
}

# `NAME: REASON` of each test that said SKIPPED in its output, once each.
announced_skips() {
  grep -oE 'SKIPPED: .*' "$logs/$1.log" | sed 's/^SKIPPED: //; s/[[:space:]]*$//' |
    awk '{ name = $0; sub(/: .*/, "", name) } !seen[name]++'
}

# `NAME: ignored` of each test that its runner was told to leave out.
ignored_skips() {
  sed -nE \
    -e 's/^ *SKIP \[[^]]*\] (\([^)]*\) )?(.*)$/\2: ignored/p' \
    -e 's/^test (.*) \.\.\. ignored(, (.*))?$/\1: ignored/p' "$logs/$1.log"
}

# Remembers every skip of a step for the comparison at the end, and prints it.
collect_skips() {
  { announced_skips "$1"; ignored_skips "$1"; } | tee -a "$logs/skips"
}

# Patterns of permitted reasons that apply to this machine.
permitted_reasons() {
  local wanted='^always[[:space:]]'
  root_on_debian || wanted='^(always|unprivileged)[[:space:]]'
  grep -E "$wanted" expected-skips.txt | sed -E 's/^[a-z]+[[:space:]]+//'
}

root_on_debian() {
  [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null
}

# Fails for each skip whose reason is not on the list, and shows those that are.
judge_skips() {
  local line reason
  permitted_reasons > "$logs/permitted"
  while IFS= read -r line; do
    reason=${line#*: }
    if [ -s "$logs/permitted" ] && printf '%s\n' "$reason" | grep -qxEf "$logs/permitted"; then
      echo "skipped, as permitted: $line"
    else
      echo "SKIPPED FOR A REASON THAT IS NOT IN expected-skips.txt: $line"
      failed=$((failed + 1))
      skipped=$((skipped - 1))
      failures+=("skip of ${line%%: *}")
    fi
  done < "$logs/skips"
}

# The closing lines; the very last one is for programs to read.
finish() {
  judge_skips
  if [ "${#failures[@]}" -gt 0 ]; then
    printf 'failed: %s\n' "${failures[@]}"
  fi
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" -eq 0 ]
}
