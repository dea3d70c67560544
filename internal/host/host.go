// Package host knows facts about this process and this machine: who we are, whether another process is known to be dead,
// the clock that runs on while the machine sleeps, and whether a file is on a network file system. What the system does not
// tell is reported as unknown, never guessed; outside Linux nearly everything is unknown.
//
// The package keeps no state. All functions are safe for concurrent use.
package host

import "os"

// Identity says which process on which machine, well enough to tell later from the same machine that it has ended. Fields
// that are not known are empty. It is stored and compared as it is; the strings have no meaning but equality.
type Identity struct {
	// Machine is /etc/machine-id. It is empty in a container (a process outside the first pid namespace or on an overlay
	// root): images are often built with a machine id inside, which then is the same on many machines.
	Machine string
	// Boot is the kernel's boot id, random for each boot.
	Boot string
	// PIDNS names the pid namespace that PID counts in, together with the time namespace that Start counts in.
	PIDNS string
	// PID is the process id.
	PID int
	// Start is when the process started, in the kernel's ticks since boot; with PID it is unique for one boot.
	Start string
}

// Self returns the identity of this process. It is read anew from the system by each call.
func Self() Identity { return self() }

// Dead reports whether the process id is known to have ended: it ran on this machine under another boot of the kernel; or
// it ran under this boot, in our pid namespace, and there is no process with its pid and start time now, or only a zombie
// (one that has ended, with all its threads, and waits for its parent to notice).
//
// Everything else is false: a live process, one of another machine or container, and whatever is empty or cannot be read.
// Equal boot ids prove the same machine also where machine ids are not known; different machine ids, if both are known,
// always mean elsewhere. Two things are beyond it: machines cloned with their machine id, and virtual machines that
// were resumed more than once from one snapshot, are the same machine here.
func Dead(id Identity) bool {
	me := self()
	switch {
	case id.Machine != "" && me.Machine != "" && id.Machine != me.Machine, id.Boot == "", me.Boot == "":
		return false
	case id.Boot != me.Boot:
		return id.Machine != "" && id.Machine == me.Machine
	case id.PIDNS == "", id.PIDNS != me.PIDNS, id.PID <= 0, id.Start == "":
		return false
	}
	return ended(id.PID, id.Start)
}

// Describe returns the host's name, for people to read; "unknown host" if the system does not tell.
func Describe() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "unknown host"
	}
	return name
}
