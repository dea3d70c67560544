package main

import (
	"slices"
)

// selection is what the flags ask for. An empty list of peers means all.
type selection struct {
	workloads []Workload
	stores    []Store
	cs        []int
	peers     []string
	ks        []int
	finished  int
	running   int
	queued    int
	asleep    int
	items     int
	kills     int
}

// plan gives the cells to measure, a slice for each group of peers that are compared with each other.
func (sel selection) plan() [][]Spec {
	var groups [][]Spec
	for _, w := range workloads {
		if !slices.Contains(sel.workloads, w) {
			continue
		}
		for _, st := range []Store{Postgres, SQLite} {
			if !slices.Contains(sel.stores, st) {
				continue
			}
			for _, g := range sel.groups(w, st) {
				g = slices.DeleteFunc(g, func(s Spec) bool { return len(sel.peers) > 0 && !slices.Contains(sel.peers, s.Peer) })
				for i := range g {
					g[i].Workload, g[i].Store = w, st
				}
				if len(g) > 0 {
					groups = append(groups, g)
				}
			}
		}
	}
	return groups
}

func (sel selection) groups(w Workload, st Store) (groups [][]Spec) {
	switch w {
	case Steps:
		for _, c := range sel.cs {
			groups = append(groups, stepsCells(st, c))
		}
	case Queue:
		for _, c := range sel.cs {
			if c > 1 {
				groups = append(groups, queueCells(st, c))
			}
		}
	case Latency:
		groups = append(groups, latencyCells(st))
	case Resume:
		var g []Spec // one group, because the lengths are compared as well
		for _, k := range sel.ks {
			g = append(g, with(Spec{K: k, C: 1}, []Spec{{Peer: "floor"}, {Peer: "dbos"}, {Peer: "pawl"}})...)
		}
		groups = append(groups, g)
	case Backlog:
		var g []Spec
		for _, s := range []Spec{{Peer: "floor-batch"}, {Peer: "river", Variant: riverTuned}, {Peer: "pawl"}} {
			empty, full := s, s
			full.Finished = sel.finished
			g = append(g, empty, full)
		}
		groups = append(groups, with(Spec{C: 64}, g))
	case Memory:
		groups = append(groups, with(Spec{C: sel.running}, []Spec{
			{Peer: "river", Variant: riverTuned, Queued: sel.queued}, {Peer: "pawl", Queued: sel.queued},
		}))
	case Batch:
		groups = append(groups, with(Spec{C: itemsAtOnce, K: sel.items}, []Spec{{Peer: "pawl"}, {Peer: "pawl", Kills: sel.kills}}))
	case Waiting:
		groups = append(groups, with(Spec{C: 64}, []Spec{{Peer: "pawl", Queued: sel.asleep}}))
	}
	return groups
}

// with sets what all cells have in common.
func with(common Spec, cells []Spec) []Spec {
	for i := range cells {
		cells[i].C, cells[i].K = common.C, common.K
	}
	return cells
}

// stepsCells leaves out what takes long and says little: floor-batch with one caller is the floor, and one commit a
// step does not get faster with 1,000 callers.
func stepsCells(st Store, c int) []Spec {
	cells := []Spec{{Peer: "floor"}, {Peer: "floor-batch"}, {Peer: "dbos"}, {Peer: "river", Variant: riverTuned},
		{Peer: "pawl", Variant: claimed}, {Peer: "pawl", Variant: inProcess}, {Peer: "pawl", Variant: onceSteps}}
	cells = slices.DeleteFunc(cells, func(s Spec) bool {
		switch {
		case c == 1:
			return s.Peer == "floor-batch" || s.Variant == onceSteps
		case c >= 1000:
			return s.Peer == "floor" || s.Peer == "river" || s.Peer == "dbos" && st == SQLite
		}
		return false
	})
	return with(Spec{C: c}, cells)
}

func queueCells(st Store, c int) []Spec {
	cells := []Spec{{Peer: "floor"}, {Peer: "floor-batch"}, {Peer: "dbos", Variant: dbosOpen},
		{Peer: "river", Variant: riverDefault}, {Peer: "river", Variant: riverTuned}, {Peer: "pawl"}}
	cells = slices.DeleteFunc(cells, func(s Spec) bool {
		return c >= 1000 && (s.Peer == "floor" || s.Peer == "dbos" || s.Variant == riverDefault)
	})
	return with(Spec{C: c}, cells)
}

func latencyCells(Store) []Spec {
	return with(Spec{C: 64}, []Spec{{Peer: "floor"}, {Peer: "floor", Variant: floorLocal}, {Peer: "dbos", Variant: dbosDirect},
		{Peer: "dbos", Variant: dbosTuned}, {Peer: "river", Variant: riverTuned},
		{Peer: "pawl", Variant: inProcess}, {Peer: "pawl", Variant: otherProc}})
}
