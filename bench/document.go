package main

import (
	_ "embed" // for the method's text
	"fmt"
	"os"
	"strings"
)

// methodText is the part of the document that no measurement changes.
//
//go:embed method.md
var methodText string

const documentHead = `# Benchmarks

Written by ` + "`make bench`" + `, and not by hand: the program is [bench](../bench), the text on the method
[bench/method.md](../bench/method.md).

## Aims

Ratios are taken within a round; shown are the median and the range over the rounds.

`

// write makes the document.
func (r *report) write(file string) error {
	var b strings.Builder
	m := r.Machine
	b.WriteString(documentHead + r.aimTable() + "\n## Machine and versions\n\n")
	fmt.Fprintf(&b, "- %s, %s, %.0f GB of memory, %s, %s. Client and server share the processors.\n", m.CPU, count(m.Cores, "core"),
		m.MemoryGB, m.Kernel, m.FileSystem)
	fmt.Fprintf(&b, "- Writing 8 kB and fdatasync: %s µs (median of 500).\n- %s; %s.\n", short(m.Sync), m.Date, strings.Join(m.Versions, ", "))
	if m.Postgres != "" {
		fmt.Fprintf(&b, "- %s, a private cluster over TCP on the loopback: %s.\n", m.Postgres, strings.Join(m.Settings, ", "))
	}
	b.WriteString("\nCommands, in bench:\n\n")
	for _, c := range m.Commands {
		fmt.Fprintf(&b, "    %s\n", c)
	}
	b.WriteString("\n" + strings.TrimSpace(methodText) + "\n\n## Tables\n\n")
	if err := r.tables(&b); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(strings.TrimSpace(b.String())+"\n"), 0o644)
}
