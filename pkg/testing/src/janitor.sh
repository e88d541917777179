# Removes a folder once nobody uses it any more. Scratch::new starts this as the leader of a process group of its own:
#
#   sh -c SCRIPT NAME FOLDER
#
# stdin is a pipe. Its other end is held by the starter and by every process that works in the folder (see supervisor.sh), so it
# ends when the last of them is gone, whether they ended well or were killed. The part that waits is nobody's child to reap.

exec 3<&0 </dev/null
(
	trap '' HUP INT QUIT TERM ALRM USR1 USR2
	while read -r _ <&3; do :; done
	cd / && rm -rf -- "$1"
) >/dev/null 2>&1 &
