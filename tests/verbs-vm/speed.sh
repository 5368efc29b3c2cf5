#!/bin/sh
# What tests/verbs-vm/speed runs inside of the virtual machine. All sleep between messages (perftest: -e): spinning processes starve the
# kernel's part of soft-RoCE on two emulated processors. Both ends are on rxe1, as those of hg-perf are, which starts its target itself.
here=$(mktemp -d)
status=0
url=verbs://rxe1

# perftest PROGRAM COLUMN ARGUMENT...: the number in this column of its table.
perftest() {
  program=$1 column=$2
  shift 2
  "$program" -d rxe1 -x 1 -F -e "$@" > "$here/server" 2>&1 &
  server=$!
  for try in 1 2 3 4 5 6 7 8 9 10; do
    netstat -ltn 2> /dev/null | grep -q :18515 && break
    sleep 0.5
  done
  timeout 120 "$program" -d rxe1 -x 1 -F -e "$@" 10.9.0.2 > "$here/client" 2>&1 || cat "$here/client" >&2
  kill $server 2> /dev/null
  wait $server 2> /dev/null
  awk -v column="$column" '$1 ~ /^[0-9]+$/ && NF >= 4 { number = $column } END { print number }' "$here/client"
}

# median ARGUMENT...: of the first figure that hg-perf prints.
median() {
  timeout 300 ./hg-perf "$@" --json > "$here/figures" 2> "$here/failed" || cat "$here/failed" >&2
  sed -n '1s/.*"median":\([0-9.e+-]*\).*/\1/p' "$here/figures"
}

# row WHAT HERE BESIDE RATIO MUST: a ratio is an expression of a and b.
row() {
  awk -v what="$1" -v a="$2" -v b="$3" -v ratio="$4" -v must="$5" 'BEGIN {
    if (a == "" || b == "") { printf "%-44s %12s %12s %7s  %s\n", what, a, b, "none", must; exit 1 }
    printf "%-44s %12.2f %12.2f %7.2f  %s\n", what, a, b, ratio == "twice" ? a / (2 * b) : a / b, must
  }' || status=1
}

printf '%-44s %12s %12s %7s  %s\n' what here beside ratio must
send=$(perftest ib_send_lat 5 -s 8 -n 200)
call=$(median rate --url $url --wait block --repetitions 40)
row '8-byte call, beside ib_send_lat (us)' "$call" "$send" twice 'at most 1.6 of twice'
read=$(perftest ib_read_bw 4 -s 1048576 -n 50)
pull=$(median bandwidth --url $url --wait block --repetitions 20)
row '1 MiB pull, beside ib_read_bw (MiB/s)' "$pull" "$read" once 'at least 0.85'
all=$(median rate --url $url --wait block --inflight 16 --repetitions 20 --set signal-every=1)
some=$(median rate --url $url --wait block --inflight 16 --repetitions 20)
row '16 calls in flight, H = 32 beside H = 1' "$some" "$all" once 'not slower'
ofi=$(FI_UNIVERSE_SIZE=64 median rate --url ofi+verbs://10.9.0.2 --wait block --repetitions 10)
row 'the call, beside ofi+verbs:// (us)' "$call" "$ofi" once 'at most 1'
echo
./curves signals 3 verbs://rxe0 verbs://rxe1 || status=1
echo
./curves rate 3 verbs://rxe0 verbs://rxe1 || status=1
echo
./curves memory verbs://rxe0 verbs://rxe1 || status=1
exit $status
