#!/bin/bash
#
# Runs a command in a virtual machine that has RDMA devices.
#
# usage: boot.sh DIRECTORY COMMAND [ARGUMENT...]
#        boot.sh --prepare
#
# The machine is Debian's own kernel and RDMA packages under qemu's software
# emulation, so it needs no hardware, no root, no /dev/kvm and no kernel
# module on this side. It has two soft-RoCE devices joined by a cable:
#
#       rxe0 on eth0, 10.9.0.1  <--->  rxe1 on eth1, 10.9.0.2
#
# What DIRECTORY holds appears there as /files, the working directory of
# COMMAND. A lone COMMAND is a line for the shell; with arguments, it is one
# program. Its output (stdout and stderr as one stream) comes out on stdout,
# and its exit status is this script's, except:
#
#       124  the machine was still running when the time was up
#       125  the machine could not be made, or died; stderr says why
#        77  what it is made of cannot be had here; stderr says what
#
# --prepare only makes the machine's image, which the first run does anyway.
# That takes network access and apt; later runs take neither.
#
# In the environment:
#   VERBS_VM_CACHE     where downloads and the image stay (~/.cache/verbs-vm)
#   VERBS_VM_TIMEOUT   seconds the machine may run (300)
#   VERBS_VM_MEMORY    its memory in MiB (1024); DIRECTORY must fit in half
#   VERBS_VM_CPUS      its processors (2); where they and its memory are even
#                      numbers, half of each is on a NUMA node of its own
#   VERBS_VM_PACKAGES  Debian packages it has besides the usual ("")
#   VERBS_VM_SUITE     the Debian release it is made from (bookworm)
#   VERBS_VM_MIRROR    where that comes from (what apt on this side uses)
#   VERBS_VM_CONSOLE   a file for the kernel's messages (none)
#   VERBS_VM_QEMU      further arguments for qemu, split at blanks ("")

set -eEuo pipefail
shopt -s nullglob

cache=${VERBS_VM_CACHE:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/verbs-vm}
limit=${VERBS_VM_TIMEOUT:-300}
memory=${VERBS_VM_MEMORY:-1024}
cpus=${VERBS_VM_CPUS:-2}
extra=${VERBS_VM_PACKAGES:-}
suite=${VERBS_VM_SUITE:-bookworm}
mirror=${VERBS_VM_MIRROR:-$(apt-get indextargets --format '$(SITE)' 2>/dev/null |
    sed -n 's,/debian/*$,,p' | head -n 1)}

keyring=/usr/share/keyrings/debian-archive-keyring.gpg
guest_packages="busybox-static dash kmod iproute2 libgcc-s1
    libibverbs1 ibverbs-providers ibverbs-utils librdmacm1 rdmacm-utils
    perftest libfabric1 libfabric-bin $extra"
host_packages="qemu-system-x86 cpio kmod xz-utils"
guest_modules="virtio_pci virtio_console virtio_net veth dummy
    rdma_rxe ib_uverbs ib_umad rdma_ucm crc32_generic crc32_pclmul"

say() { printf 'verbs-vm: %s\n' "$*" >&2; }
die() { say "$@"; exit 125; }
# What no change of this script would mend.
lack() { say "$@"; exit 77; }
trap 'die "line $LINENO failed"' ERR

# --- making the image -------------------------------------------------------

# apt with lists, package state and archives of its own: the system's are
# neither read nor changed, and no privilege is needed.
private_apt() {
    local apt=$cache/apt
    apt-get -qq -y \
        -o Dir::State="$apt" -o Dir::State::status="$apt/status" \
        -o Dir::State::lists="$apt/lists-$suite" -o Dir::Cache="$apt" \
        -o Dir::Cache::archives="$cache/debs" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o Dir::Etc::sourcelist="$apt/$suite.list" \
        -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::Etc::preferences=/dev/null \
        -o Dir::Etc::preferencesparts=/dev/null \
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 \
        -o APT::Install-Recommends=0 -o APT::Sandbox::User="$(id -un)" \
        -o Acquire::Languages=none -o Acquire::Retries=3 \
        -o APT::Update::Error-Mode=any \
        -o Debug::NoLocking=1 "$@"
}

# The archive files of these packages and of all they depend on.
archives_of() {
    private_apt -o Dir::Cache::archives="$cache/apt/none" \
        --print-uris install "$@" | sed -n "s/^'[^']*' \([^ ]*\) .*/\1/p"
}

# Unpacks archive files into a tree whose /lib is /usr/lib, and so on.
unpack() {
    local tree=$1 deb
    mkdir -p "$tree"/usr/{bin,sbin,lib,lib64}
    ln -s usr/bin usr/sbin usr/lib usr/lib64 "$tree/"
    while read -r deb; do
        dpkg-deb --fsys-tarfile "$cache/debs/$deb" |
            tar -x -C "$tree" --no-same-owner --keep-directory-symlink \
                --exclude=./usr/share/{doc,man,locale,info,lintian,i18n} \
                --exclude=./usr/share/{bash-completion,misc,iso-codes,xml}
    done
}

# The tree of programs for this side gets a script that runs one of them,
# with the libraries that came with it: run PROGRAM ARGV0 ARGUMENT...
make_runner() {
    cat >"$host/run" <<'END'
#!/bin/sh
tree=${0%/*} program=$1 name=$2
shift 2
library=$tree/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="$library/qemu"
exec "$library/ld-linux-x86-64.so.2" --library-path "$library" \
    --argv0 "$name" "$tree/usr/bin/$program" "$@"
END
    chmod +x "$host/run"
}

# A directory as an archive that the kernel unpacks, all owned by root.
pack() {
    (cd "$1" && find . | "$host/run" cpio cpio -o -H newc -R 0:0 --quiet)
}

# The kernel without its own decompressor, which is slow when emulated.
# Where that fails, the kernel as it came.
bare_kernel() {
    local from=$1 to=$2 sectors start length
    sectors=$(od -An -tu1 -j497 -N1 "$from")
    read -r start length < <(od -An -tu4 -j584 -N8 "$from")
    start=$(((sectors + 1) * 512 + start))
    if ! "$host/run" xz xz -dc >"$to" 2>/dev/null \
            < <(tail -c +$((start + 1)) "$from" | head -c $((length - 4))); then
        cp "$from" "$to"
    fi
}

make_image() {
    local work=$1 apt=$cache/apt guest=$1/guest kernel release module file

    [[ $(uname -m) == x86_64 ]] || lack "this is no x86-64 machine"
    for module in apt-get dpkg-deb tar od; do
        type -P "$module" >/dev/null || lack "$module is not installed"
    done
    [[ -r $keyring ]] || lack "$keyring is missing (debian-archive-keyring)"
    [[ $mirror ]] || lack "apt names no Debian mirror; set VERBS_VM_MIRROR"

    say "downloading from $mirror into $cache (once)"
    mkdir -p "$apt/lists-$suite/partial" "$apt/none/partial" \
        "$cache/debs/partial"
    : >"$apt/status"
    printf "deb [signed-by=$keyring] $mirror/%s main\n" \
        "debian $suite" "debian-security $suite-security" >"$apt/$suite.list"
    private_apt update || lack "the packages of $suite cannot be had"
    kernel=$(archives_of linux-image-amd64 | grep '^linux-image-[0-9]') ||
        die "no kernel found in $suite"
    # The packages' names are to be split here and below.
    # shellcheck disable=SC2086
    archives_of $guest_packages >"$work/guest.list" ||
        die "$suite has not all of these packages: $guest_packages"
    # shellcheck disable=SC2086
    archives_of $host_packages >"$work/host.list" ||
        die "$suite has not all of these packages: $host_packages"
    # shellcheck disable=SC2086
    private_apt -d install $guest_packages $host_packages >/dev/null ||
        lack "the packages of $suite cannot be had"
    [[ -e $cache/debs/$kernel ]] ||
        (cd "$cache/debs" && private_apt download "${kernel%%_*}" >/dev/null) ||
        lack "the kernel of $suite cannot be had"

    say "making the image"
    unpack "$host" <"$work/host.list"
    make_runner
    unpack "$guest" <"$work/guest.list"
    unpack "$work/kernel" <<<"$kernel"
    release=$(basename "$work"/kernel/usr/lib/modules/*)
    bare_kernel "$work/kernel/boot/vmlinuz-$release" "$work/vmlinux"

    # Of the kernel's modules, those named above and what they need.
    "$host/run" kmod depmod -b "$work/kernel" "$release"
    for module in $guest_modules; do
        "$host/run" kmod modprobe -d "$work/kernel" -S "$release" \
            --show-depends "$module" || die "no module $module"
    done | awk '$1 == "insmod" { print $2 }' | sort -u |
        while read -r file; do
            install -D "$file" "$guest/${file#"$work/kernel/"}"
        done
    cp "$work"/kernel/usr/lib/modules/"$release"/modules.{order,builtin*} \
        "$guest/usr/lib/modules/$release/"
    "$host/run" kmod depmod -b "$guest" "$release"

    rm -r "$guest"/usr/share/{perl*,debconf,pam*} \
        "$guest"/usr/lib/x86_64-linux-gnu/gconv 2>/dev/null || true
    # libfabric needs this library, which its package would put in place when
    # installed; packages here are only unpacked.
    for file in "$guest"/usr/lib/libpsm1/libpsm_infinipath.so.1.*; do
        ln -s "../libpsm1/${file##*/}" \
            "$guest/usr/lib/x86_64-linux-gnu/libpsm_infinipath.so.1"
    done
    # Busybox for every command that nothing else provides. Not its shell,
    # which would run its own "ip" whatever PATH says.
    ln -sf dash "$guest/bin/sh"
    "$guest/bin/busybox" --list | while read -r file; do
        set -- "$guest"/usr/{bin,sbin}/"$file"
        [[ -e $1 || -L $1 || -e $2 || -L $2 ]] || ln -s busybox "$1"
    done
    mkdir -p "$guest"/{dev,etc,files,proc,root,run,sys,tmp,verbs-vm}
    echo 'root:x:0:0:root:/root:/bin/sh' >"$guest/etc/passwd"
    echo 'root:x:0:' >"$guest/etc/group"
    echo '127.0.0.1 localhost verbs-vm' >"$guest/etc/hosts"
    guest_init >"$guest/init"
    chmod +x "$guest/init"
    pack "$guest" >"$work/guest.cpio"
    rm -r "$guest" "$work/kernel"
}

# The first process in the machine.
guest_init() {
    cat <<'END'
#!/bin/sh
export PATH=/usr/sbin:/usr/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
exec </dev/null >/dev/console 2>&1

give_up() { echo "verbs-vm: $*"; poweroff -f; }

# The device of the virtio port of this name.
port() {
    for p in /sys/class/virtio-ports/*; do
        [ "$(cat "$p/name")" = "$1" ] && echo "/dev/${p##*/}"
    done
}

modprobe -a virtio_pci virtio_console || give_up "no virtio"
for try in 1 2 3 4 5 6 7 8 9 10; do
    out=$(port output) status=$(port status)
    [ -c "$out" ] && [ -c "$status" ] && break
    sleep 0.2
done
[ -c "$out" ] && [ -c "$status" ] || give_up "no ports to the host"

# Two devices in one machine: a route that names its device passes over
# the other's address, so that packets do cross the cable, and the other end
# takes packets that come from an address of this machine.
modprobe -a rdma_rxe ib_uverbs rdma_ucm veth || give_up "no RDMA modules"
hostname verbs-vm
sysctl -q net.ipv6.conf.default.accept_dad=0
ip link set lo up
ip link add eth0 mtu 4200 type veth peer name eth1 mtu 4200
for n in 0 1; do
    sysctl -q net.ipv4.conf.eth$n.accept_local=1
    sysctl -q net.ipv4.conf.eth$n.rp_filter=0
    ip addr add 10.9.0.$((n + 1))/24 dev eth$n
    ip link set eth$n up
done
for n in 0 1; do
    rdma link add rxe$n type rxe netdev eth$n || give_up "no device rxe$n"
done

# The command's output goes through a pipe, because the port itself can be
# opened only once. What the command leaves running ends with its process
# namespace, whose first process is its shell, and does not keep the pipe
# open.
mkfifo /run/output
cat /run/output >"$out" &
copy=$!
cd /files
unshare --pid --fork --mount-proc /bin/sh /verbs-vm/command \
    </dev/null >/run/output 2>&1
result=$?
wait $copy
echo $result >"$status"
poweroff -f
END
}

# --- running it -------------------------------------------------------------

usage() {
    sed -n '/^# usage/,/--prepare$/s/^# //p' "$0" >&2
    exit 125
}

directory='' prepare_only=''
case ${1-} in
--prepare) prepare_only=yes; [[ $# == 1 ]] || usage ;;
-* | '') usage ;;
*) directory=$1; shift; [[ $# -gt 0 ]] || usage ;;
esac

mkdir -p "$cache" || die "cannot make $cache"
cache=$(cd "$cache" && pwd)
key=$(printf '%s\n' "$suite" "$guest_packages" | cat - "$0" | sha256sum)
image=$cache/image-${key:0:16}
work='' scratch='' machine='' copier=''
# shellcheck disable=SC2317
clean_up() {
    trap - EXIT
    [[ -z $machine ]] || kill "$machine" 2>/dev/null || true
    [[ -z $copier ]] || kill "$copier" 2>/dev/null || true
    [[ -z $scratch ]] || rm -rf "$scratch"
    [[ -z $work ]] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

exec 9>"$cache/lock"
flock 9
if [[ ! -d $image ]]; then
    rm -rf "$cache"/making.*
    work=$(mktemp -d "$cache/making.XXXXXX")
    host=$work/host
    make_image "$work"
    mv "$work" "$image"
    work=
fi
flock -u 9
exec 9>&-
[[ -z $prepare_only ]] || exit 0
host=$image/host

[[ -d $directory ]] || die "$directory is not a directory"
scratch=$(mktemp -d "${TMPDIR:-/tmp}/verbs-vm.XXXXXX")
size=$(du -smL --apparent-size "$directory" | cut -f1)
((size <= memory / 2)) ||
    die "$directory has $size MiB, too much for $memory MiB of memory;" \
        "set VERBS_VM_MEMORY"
mkdir -p "$scratch"/root/{files,verbs-vm}
cp -rL --preserve=mode,timestamps "$directory/." "$scratch/root/files/" ||
    die "cannot copy $directory"
if [[ $# == 1 ]]; then
    printf '%s\n' "$1"
else
    printf '%q ' "$@"
fi >"$scratch/root/verbs-vm/command"
pack "$scratch/root" | cat "$image/guest.cpio" - >"$scratch/initrd"

console=${VERBS_VM_CONSOLE:-$scratch/console}
: >"$console" || die "cannot write $console"
mkfifo "$scratch/output"
cat "$scratch/output" &
copier=$!

# What a slow emulated machine on a busy host must not be judged by: timer
# interrupts that come late, and processors that seem stuck.
quirks="no_timer_check nowatchdog rcupdate.rcu_cpu_stall_suppress=1"
quirks+=" edd=off mitigations=off"
nodes=
if ((cpus % 2 == 0 && memory % 2 == 0)); then
    for node in 0 1; do
        nodes+=" -object memory-backend-ram,id=memory$node,size=$((memory / 2))M"
        nodes+=" -numa node,memdev=memory$node"
        nodes+=",cpus=$((node * cpus / 2))-$(((node + 1) * cpus / 2 - 1))"
    done
fi
# shellcheck disable=SC2086
timeout -k 5 "$limit" \
    "$host/run" qemu-system-x86_64 qemu-system-x86_64 \
    -L "$host/usr/share/qemu" -L "$host/usr/share/seabios" \
    -no-user-config -nodefaults -display none -no-reboot \
    -machine pc -accel tcg,thread=multi -cpu max -smp "$cpus" -m "$memory" $nodes \
    -kernel "$image/vmlinux" -initrd "$scratch/initrd" \
    -append "console=ttyS0 panic=-1 oops=panic $quirks" \
    -serial "file:$console" -device virtio-serial \
    -chardev "file,id=output,path=$scratch/output" \
    -device virtserialport,chardev=output,name=output \
    -chardev "file,id=status,path=$scratch/status" \
    -device virtserialport,chardev=status,name=status \
    ${VERBS_VM_QEMU-} </dev/null >"$scratch/qemu" 2>&1 &
machine=$!
ended=0
wait "$machine" || ended=$?
machine=
# If qemu never opened the pipe, its reader is still waiting for a writer.
exec 8<>"$scratch/output"
exec 8>&-
wait "$copier" || true
copier=

if [[ -s $scratch/status ]]; then
    exit "$(<"$scratch/status")"
fi
cat "$scratch/qemu" >&2
if [[ $ended == 124 ]]; then
    say "stopped after $limit seconds (VERBS_VM_TIMEOUT); the console's end:"
    tail -n 5 "$console" | tr -d '\r' >&2
    exit 124
fi
say "the machine died before the command ended (qemu: $ended);" \
    "the console's end:"
tail -n 40 "$console" | tr -d '\r' >&2
exit 125
