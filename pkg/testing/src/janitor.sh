# Removes a folder when no process uses it any more. ScratchDir::new starts this script as the
# leader of its own process group:
#
#   sh -c SCRIPT NAME FOLDER
#
# stdin is a pipe. The starter and every process that works in the folder (see supervisor.sh) hold
# its other end, which closes when the last of them has ended, normally or by a kill. The subshell
# that waits is reparented to init, so the starter need not reap it.

exec 3<&0 </dev/null
(
	trap '' HUP INT QUIT TERM ALRM USR1 USR2
	while read -r _ <&3; do :; done
	cd / && rm -rf -- "$1"
) >/dev/null 2>&1 &
