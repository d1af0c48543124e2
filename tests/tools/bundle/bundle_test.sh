#!/bin/bash
# Makes a bundle and runs it in an otherwise empty root folder: bundle_test.sh BUNDLE_TOOL PROGRAM
#
# The folder has only glibc, /bin/sh and the bundle: no /etc, no other program or library; at last, its glibc is useless, as
# if it were too old. bare_room.sh runs there as a user without name or home, in private namespaces: loopback is the only network, and the mounts (/proc, /sys, /dev) end
# with it. This needs root or unprivileged user namespaces. If the kernel or a container provides neither, the test is
# skipped and says so.
set -euo pipefail
PATH+=:/usr/sbin:/sbin # Bazel's PATH lacks them

fail() {
  echo "bundle_test: $*" >&2
  exit 1
}

if [[ "$1" == --room ]]; then  # inside the namespaces: completes the room and enters it
  room=$2
  user=$3
  shift 3
  ip link set lo up
  mount -t proc proc "$room/proc"
  mount -t sysfs -o ro sysfs "$room/sys"
  mount -t tmpfs -o mode=755 tmpfs "$room/dev"
  for device in null zero urandom; do
    touch "$room/dev/$device"
    mount --bind "/dev/$device" "$room/dev/$device"
  done
  mkdir -m 1777 "$room/dev/shm"
  if [[ "$user" == mapped ]]; then  # the only user of an unprivileged namespace, under another number: not root
    exec env -i unshare --user --map-user=1000 --map-group=1000 --root="$room" --wd=/ /bin/sh /bare_room.sh "$@"
  fi
  exec env -i "$(command -v chroot)" --userspec="$user" "$room" /bin/sh /bare_room.sh "$@"
fi

for tool in ip unshare chroot patchelf cc; do command -v "$tool" >/dev/null || fail "'$tool' is not installed"; done
namespaces=(unshare --mount --net --pid --ipc --uts --fork --kill-child)
user=65534:65534
if [[ $(id -u) != 0 ]]; then
  namespaces+=(--user --map-root-user)
  user=mapped
fi
if ! refusal=$("${namespaces[@]}" true 2>&1); then
  echo "bundle_test: skipped, no namespaces can be made here: $refusal"
  [[ -z "${XML_OUTPUT_FILE:-}" ]] ||
    echo '<testsuites><testsuite name="bundle_test"><testcase name="bundle_test"><skipped/></testcase></testsuite></testsuites>' >"$XML_OUTPUT_FILE"
  exit 0
fi
bundle_tool=$1
program=$2
script=$(realpath "${BASH_SOURCE[0]}")
room=$(mktemp -d /tmp/bundle_test.XXXXXX)
remove_room() {
  # The mounts belong to another namespace. If one is left here, removing the folder would reach the machine's devices.
  if grep -qF " $room/" /proc/self/mountinfo; then
    echo "bundle_test: something is mounted below $room: not removed" >&2
    return
  fi
  chmod -R u+w "$room"
  rm -rf --one-file-system "$room"
}
trap remove_room EXIT
chmod 755 "$room"
mkdir -p "$room"/{bin,proc,sys,dev,tmp,opt,lib64,"moved to"}
mkdir -m 1777 "$room/results"
chmod 1777 "$room/tmp"
mkdir -m 1777 "$room/tmp/"{nodea,nodeb} # for the two nodes of bare_room.sh

# glibc, at the same path as here, where the loader looks for it.
libraries=$(dirname "$(ldd "$program" | sed -nE 's/^\s*libc\.so\.6 => (\S+).*/\1/p')")
mkdir -p "$room$libraries"
for name in libc.so.6 libm.so.6 libmvec.so.1 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libutil.so.1; do
  cp -L "$libraries/$name" "$room$libraries/"
done
cp -L /lib64/ld-linux-x86-64.so.2 "$room/lib64/"
cp -L "$(command -v dash || fail "dash is not installed")" "$room/bin/sh"
cp -L "$(dirname "$script")/bare_room.sh" "$room/"
head -c 100000 "$script" "$(dirname "$script")/bare_room.sh" "$bundle_tool" >"$room/text"

# In place of an earlier bundle, from whose folder a job was submitted.
mkdir -p "$room/opt/mantissa"/{libexec,runs/one}
touch "$room/opt/mantissa/libexec"/{mantissa,earlier} "$room/opt/mantissa/runs/one/checkpoint"
(umask 077 && "$bundle_tool" --program "$program" --output "$room/opt/mantissa") # other users, as in the room, can run it all the same
[[ -f "$room/opt/mantissa/runs/one/checkpoint" ]] || fail "a new bundle removes the run folders beside the earlier one"
[[ ! -e "$room/opt/mantissa/libexec/earlier" ]] || fail "files of the earlier bundle are left"
rm -r "$room/opt/mantissa/runs"
! grep -aqF libcudnn.so "$program" || grep -q "^cuDNN is not included" "$room/opt/mantissa/README" ||
  fail "the README does not say that there is no cuDNN"
[[ $(find "$room/opt/mantissa" -type l | wc -l) == 0 ]] || fail "a bundle with links does not survive every way of copying"

# The recipes of images copy the files of a bundle, and nothing else that lies there, such as run folders. Nothing here can build an image.
recipes=$room/opt/mantissa/configs/containers
while read -r part _; do
  [[ $part != . && -e "$room/opt/mantissa/$part" ]] || fail "a recipe copies $part, which the bundle does not have"
done < <(
  sed -n '/^%files/,/^$/{/^ /p}' "$recipes/mantissa.def" | grep . || echo "files of mantissa.def"
  sed -n 's/^COPY //p' "$recipes/Dockerfile" | grep . || echo "files of Dockerfile"
)
for part in "$room/opt/mantissa"/*; do
  part="${part##*/} /opt/mantissa/${part##*/}"
  grep -qxF "    $part" "$recipes/mantissa.def" || fail "mantissa.def does not copy ${part%% *}"
  grep -qxF "COPY $part" "$recipes/Dockerfile" || fail "Dockerfile does not copy ${part%% *}"
done

run_in_room() { "${namespaces[@]}" "$BASH" "$script" --room "$room" "$user" "$@" </dev/null; }

echo "==== in the bare room"
run_in_room /opt/mantissa /results/first

echo "==== moved, to a path with a space"
mv "$room/opt/mantissa" "$room/moved to/another name"
run_in_room "/moved to/another name" /results/second

echo "==== through a link to the folder, its place read-only, on a system with an older glibc"
# The shell gets a glibc of its own. Whoever takes a library of the system fails.
mkdir -p "$room"/{shell,usr/lib64}
cp -L "$libraries/libc.so.6" /lib64/ld-linux-x86-64.so.2 "$room/shell/"
patchelf --set-interpreter /shell/ld-linux-x86-64.so.2 --set-rpath /shell "$room/bin/sh"
for file in "$room$libraries"/* "$room"/usr/lib64/lib{c,m,stdc++,gomp}.so.6; do echo "of another glibc" >"$file"; done
printf '#!/bin/sh\necho "--version: error while loading shared libraries: --version: cannot open" >&2\nexit 127\n' \
  >"$room/lib64/ld-linux-x86-64.so.2"
# The node's libraries are found all the same, such as one of name services. The GPU's driver is opened like it.
mkdir "$room/etc"
echo "passwd: node files" >"$room/etc/nsswitch.conf"
cc -shared -fPIC -o "$room/usr/lib64/libnss_node.so.2" -x c - <<'CODE'
#include <unistd.h>
__attribute__((constructor)) static void say(void) { (void)!write(2, "name service of the node\n", 25); }
CODE
mv "$room/moved to/another name" "$room/opt/third"
ln -s third "$room/opt/link"
chmod -R a-w "$room/opt/third"
run_in_room /opt/link /results/third older

echo "==== through a link to the program"
ln -s "$room/opt/third/bin/mantissa" "$room/mantissa"
"$room/mantissa" config "$room/opt/third/configs/quickstart.yaml" >/dev/null

echo "==== an output folder that is no bundle is refused, and left as it was"
echo precious >"$room/results/file"
if "$bundle_tool" --program "$program" --output "$room/results" 2>"$room/refusal"; then fail "wrote over a folder of something else"; fi
grep -q 'is not a bundle' "$room/refusal" || fail "refused for another reason: $(cat "$room/refusal")"
[[ $(cat "$room/results/file") == precious ]] || fail "the refused folder has changed"
echo "bundle_test: passed"
