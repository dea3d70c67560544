package pawl

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"
)

// GateInfo is a gate as people see it.
type GateInfo struct {
	ID         EntryID `json:"id"`
	Run        RunID   `json:"run"`
	Workflow   string  `json:"workflow"`
	Version    string  `json:"version"` // that asked
	Key        Key     `json:"key,omitempty"`
	Step       string  `json:"step"`
	Generation int     `json:"generation"` // from 1; each edit makes the next one
	Supersedes EntryID `json:"supersedes,omitempty"`
	// State is the stored state, and for one that a step has claimed what that step has come to: "executing", "executed",
	// "execution_failed", "unknown", or "cancelled" after a person has given it up.
	State string `json:"state"`
	// Action is the name of what is asked about. Kind and OpKey are those of the step that will act, if they are known.
	Action string `json:"action"`
	Kind   Kind   `json:"kind,omitempty"`
	OpKey  OpKey  `json:"operation_key,omitempty"`
	// Payload is JSON: what will be done. Previous is that of the generation before an edit. Form is the payload's JSON schema,
	// if its type has one.
	Payload  []byte `json:"-"`
	Previous []byte `json:"-"`
	Form     []byte `json:"-"`
	Hash     string `json:"hash"` // of all the above; an approval names it

	Requested  time.Time `json:"requested"`
	Expires    time.Time `json:"expires,omitzero"`
	Deciders   []string  `json:"deciders,omitempty"`
	TwoPersons bool      `json:"two_persons,omitempty"`
	EditedBy   string    `json:"edited_by,omitempty"`

	By           string    `json:"by,omitempty"`
	Via          string    `json:"via,omitempty"`
	Reason       string    `json:"reason,omitempty"`
	Decided      time.Time `json:"decided,omitzero"`
	GrantExpires time.Time `json:"grant_expires,omitzero"` // when an unused approval does
	Claimed      time.Time `json:"claimed,omitzero"`
	Acts         string    `json:"acts,omitempty"` // the step that acts under it
}

// executing and the others are the states that are read off the step which acts under a gate.
const (
	gateExecuting       = "executing"
	gateExecuted        = "executed"
	gateExecutionFailed = "execution_failed"
	gateUnknown         = "unknown"
)

// Gate returns a gate by the id of its inbox entry. It only looks: a question whose time is over shows as "expired" before
// anybody has written that.
func (e *Engine) Gate(ctx context.Context, id EntryID) (info *GateInfo, err error) {
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		g, err := tx.Gate(ctx, id)
		if err != nil {
			return err
		}
		info, err = e.gateInfo(ctx, tx, g)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("gate %s: %w", id, err)
	}
	return info, nil
}

// Edited shows the gate that an edit would make, with the hash that [AnswerEditAndApprove] needs. It writes nothing, and reads only
// Gate, By and Payload.
func (e *Engine) Edited(ctx context.Context, d Decision) (info *GateInfo, err error) {
	d.Choice = AnswerEdit
	if err = d.check(); err == nil {
		err = e.plainEdit(ctx, &d)
	}
	if err != nil {
		return nil, fmt.Errorf("edit %s: %w", d.Gate, err)
	}
	err = e.store.View(ctx, func(ctx context.Context, tx Txn) error {
		g, err := tx.Gate(ctx, d.Gate)
		if err != nil {
			return err
		}
		next, err := e.successor(g, &d)
		if err != nil {
			return err
		}
		info, err = e.gateInfo(ctx, tx, next)
		info.ID = ""
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("edit %s: %w", d.Gate, err)
	}
	return info, nil
}

func (e *Engine) gateInfo(ctx context.Context, tx Txn, g *GateRow) (*GateInfo, error) {
	run, err := tx.LockRun(ctx, g.Run)
	if err != nil {
		return nil, err
	}
	info := &GateInfo{ID: g.ID, Run: g.Run, Workflow: run.Workflow, Version: g.Version, Key: run.Key, Step: g.Step, Generation: g.Generation,
		Supersedes: g.Supersedes, Action: g.Action, Kind: g.Kind, OpKey: g.Key, Payload: e.shown(g.Payload), Form: g.Form,
		Hash: hex.EncodeToString(g.Hash), Requested: micros(g.Requested), Expires: micros(g.Expires), Deciders: g.Deciders,
		TwoPersons: g.TwoPersons, EditedBy: g.EditedBy, By: g.By, Via: g.Via, Reason: g.Why, Decided: micros(g.Decided),
		GrantExpires: micros(g.GrantExpires), Claimed: micros(g.Claimed), Acts: g.Ref}
	if g.Supersedes != "" {
		before, err := tx.Gate(ctx, g.Supersedes)
		if err != nil {
			return nil, err
		}
		info.Previous = e.shown(before.Payload)
	}
	info.State, err = g.stands(ctx, tx)
	return info, err
}

// stands is the gate's state for people.
func (g *GateRow) stands(ctx context.Context, tx Txn) (string, error) {
	if g.State != GateClaimed {
		now, err := tx.Now(ctx)
		if err == nil && g.overdue(now) {
			return string(GateExpired), nil
		}
		return string(g.State), err
	}
	row, err := tx.Step(ctx, g.Run, g.Ref)
	if err != nil || row == nil {
		return gateUnknown, err
	}
	switch row.State {
	case StepSucceeded:
		return gateExecuted, nil
	case StepFailed:
		return gateExecutionFailed, nil
	case StepUncertain:
		return gateUnknown, nil
	case StepGivenUp:
		return string(GateCancelled), nil
	case StepInFlight, StepRetrying, StepWaiting:
	}
	return gateExecuting, nil
}
