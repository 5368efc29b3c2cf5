#!/bin/sh
# Jobs whose ranks reach one another over a card: each checks every call, or message, itself. Ends as the tests of cargo do.
failed=0
passed=0
said=$(mktemp)
job() {
  name=$1
  shift
  if "$@" > "$said" 2>&1; then
    passed=$((passed + 1))
    echo "test $name ... ok"
  else
    failed=$((failed + 1))
    cat "$said"
    echo "test $name ... FAILED"
  fi
}
echo "running 3 tests"
job threads_of_two_processes_call_one_another \
  ./invoke-runner --local 2 --force --threads 2 --count 2000 --url verbs://rxe0
job ranks_of_two_nodes_shuffle \
  ./shuffle-runner --local 4 --force --nodes 2x2 --count 2000 --url verbs://rxe0 --local-url verbs://rxe0
job objects_to_members_over_a_card \
  ./multicast-runner --local 4 --size 1,64K,4M --block-size 256K --schedule pipeline,tree --count 3 --url verbs://rxe0
result=ok
[ "$failed" -eq 0 ] || result=FAILED
echo
echo "test result: $result. $passed passed; $failed failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
[ "$failed" -eq 0 ]
