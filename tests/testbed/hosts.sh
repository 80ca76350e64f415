#!/usr/bin/env bash
# Hosts of one machine: network and UTS namespaces on one bridge, each with its own address, name, ports and link.
#   hosts.sh up NAME...       make them, and one called "head"; addresses 10.77.0.1, .2 ... in this order, head is .100
#   hosts.sh on NAME CMD...   run a command there
#   hosts.sh link NAME rate 200mbit | send-rate 200mbit | receive-rate 200mbit | loss PERCENT | relay [--delay-ms 2 --jitter-ms 0 --loss 1 --rate-mbit 200] | down | up | clear
#   hosts.sh down             end what runs there (by pid) and remove all
# Root, iproute2, util-linux; nftables for "loss". Namespaces are called $TESTBED-NAME (default nb-NAME): with unlike
# names several sets live side by side. The bridge has a namespace of its own ($TESTBED-sw), so nothing is added to
# the machine's own network, and the addresses may be the same in every set.
set -euo pipefail
set_name=${TESTBED:-nb} net=10.77.0 mtu=1500
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '2,6s/^# *//p' "$0" >&2; exit 2; }

up() {
  local names=(head "$@") name number=0 address table
  down
  ip netns add "$set_name-sw"
  ip -n "$set_name-sw" link set lo up
  ip -n "$set_name-sw" link add br0 type bridge
  ip -n "$set_name-sw" link set br0 mtu $mtu up
  table=$(mktemp)
  # torch's store looks names up by mapped address: without these lines each rendezvous waits 5 s for DNS.
  printf '127.0.0.1 localhost\n::ffff:127.0.0.1 localhost\n%s.100 head\n::ffff:%s.100 head\n' $net $net >"$table"
  for name in "$@"; do
    number=$((number + 1))
    printf '%s.%d %s\n::ffff:%s.%d %s\n' $net $number "$name" $net $number "$name" >>"$table"
  done
  number=0
  for name in "${names[@]}"; do
    if [ "$name" = head ]; then address=$net.100; else number=$((number + 1)) address=$net.$number; fi
    ip netns add "$set_name-$name"
    mkdir -p "/etc/netns/$set_name-$name" # ip netns exec binds these files over those of /etc
    install -m 644 "$table" "/etc/netns/$set_name-$name/hosts"
    echo "nameserver 127.0.0.1" >"/etc/netns/$set_name-$name/resolv.conf"
    ip link add eth0 netns "$set_name-$name" type veth peer name "$name" netns "$set_name-sw"
    ip -n "$set_name-sw" link set "$name" mtu $mtu master br0 up
    ip -n "$set_name-$name" link set lo up
    ip -n "$set_name-$name" link set eth0 mtu $mtu up
    ip -n "$set_name-$name" addr add "$address/24" dev eth0
  done
  rm -f "$table"
}

down() {
  local space signal pids
  for space in $(ip netns list | awk '{print $1}' | grep -E "^$set_name-[a-zA-Z0-9-]+$" || true); do
    for signal in TERM KILL; do
      pids=$(ip netns pids "$space" 2>/dev/null || true)
      [ -n "$pids" ] || break
      # shellcheck disable=SC2086 # one word a process
      kill -$signal $pids 2>/dev/null || true
      for _ in $(seq 10); do [ -n "$(ip netns pids "$space" 2>/dev/null)" ] || break; sleep 0.1; done
    done
    end_relay "${space#"$set_name-"}"
    ip netns del "$space"
    rm -rf "/etc/netns/$space"
  done
  rmdir /etc/netns 2>/dev/null || true
}

on() {
  local name=$1
  shift
  exec ip netns exec "$set_name-$name" unshare --uts -- /bin/sh -c 'hostname "$0"; exec "$@"' "$name" "$@"
}

link() {
  local name=$1 what=$2 inside="$set_name-$1" switch="$set_name-sw"
  shift 2
  case $what in
  rate)
    link "$name" send-rate "$1"
    link "$name" receive-rate "$1"
    ;;
  send-rate) ip netns exec "$inside" tc qdisc replace dev eth0 root tbf rate "$1" burst 64kb latency 50ms ;;
  receive-rate) ip netns exec "$switch" tc qdisc replace dev "$name" root tbf rate "$1" burst 64kb latency 50ms ;;
  loss) loss "$name" "$1" ;;
  relay) relay "$name" "$@" ;;
  down | up) ip -n "$switch" link set "$name" "$what" ;;
  clear) clear_link "$name" ;;
  *) usage ;;
  esac
}

# Both directions at the switch's and the host's ends. A drop in an output hook would be told to the socket, so only what
# comes in is dropped. On a veth a loss takes whole segments of up to 64 KB; a relay sees frames of the MTU.
loss() {
  local share which inside="$set_name-$1" switch="$set_name-sw"
  share=$(awk -v percent="$2" 'BEGIN { printf "%d", percent * 100 }')
  if [ "$share" -lt 10000 ]; then which="numgen random mod 10000 < $share"; else which=""; fi
  ip netns exec "$inside" nft -f - <<NFT
table inet loss
delete table inet loss
table inet loss {
  chain in { type filter hook input priority 0; iifname "eth0" $which counter drop; }
}
NFT
  ip netns exec "$switch" nft -f - <<NFT
table netdev loss_at_${1//-/_}
delete table netdev loss_at_${1//-/_}
table netdev loss_at_${1//-/_} {
  chain in { type filter hook ingress device "$1" priority 0; $which counter drop; }
}
NFT
}

clear_link() {
  local name=$1 inside="$set_name-$1" switch="$set_name-sw" address mac
  if [ -e "$(relay_pid_file "$name")" ]; then # put the veth back
    address=$(ip -n "$inside" -4 -o addr show eth0 | awk '{print $4}')
    mac=$(mac_of "$inside")
    end_relay "$name"
    ip link add eth0 netns "$inside" type veth peer name "$name" netns "$switch"
    plug_in "$name" "$address" "$mac"
  fi
  ip netns exec "$inside" tc qdisc del dev eth0 root 2>/dev/null || true
  ip netns exec "$switch" tc qdisc del dev "$name" root 2>/dev/null || true
  ip netns exec "$inside" nft delete table inet loss 2>/dev/null || true
  ip netns exec "$switch" nft delete table netdev "loss_at_${name//-/_}" 2>/dev/null || true
  ip -n "$switch" link set "$name" up
}

# The veth is swapped for two TAPs joined by wire.py; the hardware address stays, or peers hold a stale one for seconds.
relay() {
  local name=$1 inside="$set_name-$1" switch="$set_name-sw" address mac
  shift
  address=$(ip -n "$inside" -4 -o addr show eth0 | awk '{print $4}')
  mac=$(mac_of "$inside")
  end_relay "$name"
  ip -n "$inside" link del eth0 2>/dev/null || true
  python3 "$here/wire.py" --host-ns "$inside" --host-if eth0 --switch-ns "$switch" --switch-if "$name" \
    --pid-file "$(relay_pid_file "$name")" "$@" </dev/null >/dev/null 2>&1 &
  for _ in $(seq 100); do
    ip -n "$switch" link show "$name" >/dev/null 2>&1 && ip -n "$inside" link show eth0 >/dev/null 2>&1 && break
    sleep 0.05
  done
  plug_in "$name" "$address" "$mac"
}

plug_in() {
  ip -n "$set_name-sw" link set "$1" mtu $mtu master br0 up
  ip -n "$set_name-$1" link set eth0 address "$3" mtu $mtu up
  ip -n "$set_name-$1" addr add "$2" dev eth0
}

mac_of() { ip -n "$1" -o link show eth0 | grep -o 'link/ether [0-9a-f:]*' | cut -d' ' -f2; }

relay_pid_file() { echo "/run/$set_name-link-$1.pid"; }

end_relay() {
  local file pid
  file=$(relay_pid_file "$1")
  [ -e "$file" ] || return 0
  pid=$(cat "$file")
  if grep -qa wire.py "/proc/$pid/cmdline" 2>/dev/null; then kill "$pid"; fi
  rm -f "$file"
  sleep 0.2
}

[ $# -gt 0 ] || usage
command=$1
shift
case $command in
up | link) [ $# -gt 0 ] || usage ;;&
up | down | on | link) "$command" "$@" ;;
*) usage ;;
esac
