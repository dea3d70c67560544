package pawl_test

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pawlrun/pawl"
)

func (s *stage) payTx(run *pawl.Run, name string, in payout, opts ...pawl.TxOption) (string, error) {
	return pawl.Tx(run, name, in, func(ctx context.Context, tx *sql.Tx, o payout) (string, error) {
		if _, err := tx.ExecContext(ctx, `INSERT INTO effects (name) VALUES ($1)`, name); err != nil {
			return "", err
		}
		return s.act(ctx, name, "", fmt.Sprintf("%s/%d", o.No, o.Cents))
	}, opts...)
}

// acts lists the run's acts of that name.
func (s *stage) acts(id pawl.RunID, act string) (found []pawl.AuditEntry) {
	s.t.Helper()
	for _, a := range s.show(s.desk, id).Audit {
		if a.Act == act {
			found = append(found, a)
		}
	}
	return found
}

// auditTells rebuilds each gate of the run from its acts alone, and compares with what is stored at the same moment (A9).
func (s *stage) auditTells(id pawl.RunID) {
	s.t.Helper()
	var acts []pawl.AuditRow
	gates := s.readGates(id, &acts)
	rebuilt, revs := map[pawl.EntryID]string{}, map[pawl.EntryID]int{}
	for _, a := range acts {
		if a.Act != "gate" {
			continue
		}
		var from, to, hash string
		var rev, generation int
		if n, err := fmt.Sscanf(a.Detail, "%s -> %s rev=%d generation=%d hash=%s", &from, &to, &rev, &generation, &hash); err != nil || n != 5 {
			s.t.Fatalf("act %q cannot be read: %v", a.Detail, err)
		}
		was, known := rebuilt[a.Entry]
		if !known {
			was = "none"
		}
		if from != was || rev != revs[a.Entry]+1 || a.By == "" {
			s.t.Errorf("an act goes from %s to %s at rev %d, the gate was %s at %d", from, to, rev, was, revs[a.Entry])
		}
		rebuilt[a.Entry], revs[a.Entry] = to, rev
	}
	if len(rebuilt) == 0 {
		s.t.Error("the run has no act of a gate")
	}
	for gate, g := range gates {
		if rebuilt[gate] != string(g.State) || int64(revs[gate]) != g.Rev {
			s.t.Errorf("the acts say %s at rev %d, the gate is %s at %d", rebuilt[gate], revs[gate], g.State, g.Rev)
		}
		delete(rebuilt, gate)
	}
	if len(rebuilt) > 0 {
		s.t.Errorf("acts tell of gates that are not there: %v", rebuilt)
	}
}

// gatesOf reads the run's gates as stored.
func (s *stage) gatesOf(id pawl.RunID) map[pawl.EntryID]pawl.GateRow { return s.readGates(id, nil) }

func (s *stage) readGates(id pawl.RunID, acts *[]pawl.AuditRow) map[pawl.EntryID]pawl.GateRow {
	s.t.Helper()
	all := map[pawl.EntryID]pawl.GateRow{}
	err := s.bench.store.View(s.t.Context(), func(ctx context.Context, tx pawl.Txn) error {
		gates, err := tx.Gates(ctx, id)
		for i := range gates {
			all[gates[i].ID] = gates[i]
		}
		if err == nil && acts != nil {
			*acts, err = tx.Audit(ctx, id)
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}
