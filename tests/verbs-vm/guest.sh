#!/bin/sh
# What runs inside of the virtual machine: each program with tests; an argument chooses among their names.
export HG_VERBS_DEVICES=rxe0,rxe1
status=0
# Without the numbers of the cards: one that was removed has another one.
left() { rdma resource show | cut -d: -f2-; }
before=$(left)
./device --test-threads 4 --skip ports:: --skip kills:: --skip faults:: "$@" || status=1
# Those look at all that there is on the cards, or cut their cable.
if [ $# -eq 0 ]; then
  ./device --test-threads 1 kills:: || status=1
  ./device --test-threads 1 ports:: || status=1
  ./device --test-threads 1 faults:: || status=1
  # A test that was ended has not put back the card that it had removed.
  [ -e /sys/class/infiniband/rxe1 ] || rdma link add rxe1 type rxe netdev eth1
fi
./verbs --test-threads 1 "$@" || status=1
# Without those through daemons, which are built for other tests.
INVOKE_NODES=2 ./nodes --test-threads 1 --skip visor "$@" || status=1
if [ $# -eq 0 ]; then
  ln -sf /proc/self/fd/0 /dev/stdin
  # Calls, bulk data and deaths through two daemons, a card each.
  ./system --list networks::verbs | grep -q ': test$' || { echo "there are no tests of daemons over cards"; status=1; }
  VISOR_PROGRAM=$PWD/hg-visor ./system --test-threads 1 networks::verbs || status=1
  sh jobs.sh || status=1
fi
# All processes have ended: what they had is gone.
after=$(left)
if [ "$before" != "$after" ]; then
  echo "something is left in the kernel:"
  echo "$before"
  echo "$after"
  status=1
fi
exit $status
