//go:build linux

package host

// Internal, because no test can mount a network file system, nor make a process whose first thread alone has ended.

import "testing"

func TestNetworkMagic(t *testing.T) {
	t.Parallel()
	for magic, want := range map[uint32]string{
		0x6969: "NFS", 0xFF534D42: "SMB/CIFS", 0x517B: "SMB/CIFS", 0xFE534D42: "SMB/CIFS", 0x01021997: "9p", 0x65735546: "FUSE or virtiofs",
		0x5346414F: "AFS", 0x6B414653: "AFS", 0x00C36400: "Ceph", 0x7461636F: "OCFS2", 0x01161970: "GFS2", 0x0BD00BD0: "Lustre",
		0x73757245: "Coda", 0x19830326: "BeeGFS", 0x786F4256: "VirtualBox shared folder",
		0: "", 0xEF53: "", 0x58465342: "", 0x9123683E: "", 0x01021994: "", 0x794C7630: "", 0x2FC12FC1: "", 0x9FA0: "", 0xF2F52010: "",
	} {
		if got := networkMagic(magic); got != want {
			t.Errorf("networkMagic(%#x) = %q, want %q", magic, got, want)
		}
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 1 2 3 0 -1 4194304 103 0 0 0 0 0 0 0 20 0 %T 0 8167 2584576 320 184467"
	line := func(comm, state, threads string) []byte {
		out := "77 (" + comm + ") " + state
		for i := range rest {
			switch {
			case rest[i] == '%':
				out += threads
			case rest[i] == 'T':
			default:
				out += rest[i : i+1]
			}
		}
		return []byte(out)
	}
	for _, c := range []struct {
		comm, state, threads string
		over                 bool
	}{
		{"sleep", "S", "1", false}, {"a) Z 1 (", "R", "9", false}, {") ", "D", "1", false}, {"x\ny", "T", "1", false}, {"", "I", "1", false},
		{"z", "Z", "1", true}, {"z", "Z", "0", true}, {"z", "X", "1", true}, {"first thread only", "Z", "2", false},
	} {
		st, err := parseStat(line(c.comm, c.state, c.threads))
		if err != nil || st.start != "8167" || st.over() != c.over {
			t.Errorf("comm %q, state %s, %s threads: start %q, over %v, %v", c.comm, c.state, c.threads, st.start, st.over(), err)
		}
	}
	for _, s := range []string{"", "77 (x", "77 (x) S 1 2 3", "77 (x) SS" + rest, "77 (x) S 1 2 3 0 -1 4194304 103 0 0 0 0 0 0 0 20 0 1 0 -5 1"} {
		if st, err := parseStat([]byte(s)); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", s, st)
		}
	}
}
