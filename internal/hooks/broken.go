package hooks

// Rule is a rule of the protocol that looks fussy and is not. A build with the tag pawlbroken leaves out those that the
// environment variable PAWL_BROKEN names, separated by commas, so that the torture can show that it tells. In every other
// build [Broken] is false, and the compiler removes what depends on it.
type Rule string

// The rules that can be left out. Without the rule:
const (
	W1  Rule = "W1"  // a write does not lock the run's row before it compares epoch and token
	W2  Rule = "W2"  // a run that a worker owns by the record and not in memory is not given back
	W3  Rule = "W3"  // the journal is as it was when the claim began
	W4  Rule = "W4"  // a release leaves the epoch as it is
	W5  Rule = "W5"  // "did not happen" counts while the attempt may still go on
	W6  Rule = "W6"  // a lineage may have two live runs
	W7  Rule = "W7"  // a retry inherits what was given up as if it had not happened
	W8  Rule = "W8"  // a run ends with steps of which nobody knows whether they happened
	W9  Rule = "W9"  // where a suspended run goes is decided by what was known before its row was locked
	W10 Rule = "W10" // evidence and answers are not about one attempt
	W13 Rule = "W13" // a store's clock that has stepped is believed at once
	W14 Rule = "W14" // a claim has no token
	R1  Rule = "R1"  // a step starts before the results it depends on are durable
)
