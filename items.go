package pawl

import (
	"context"
	"strings"

	"github.com/pawlrun/pawl/fault"
)

// ItemRows are the operations on items of batches. The steps of an item are rows of the journal, which [StepRows.Steps]
// leaves out.
type ItemRows interface {
	// AddItem adds a row with a plain INSERT; Ended is set to now. ErrStepExists if the item is there.
	AddItem(ctx context.Context, row *ItemRow) error
	// Item returns one row with its value, nil if there is none.
	Item(ctx context.Context, run RunID, batch, item string) (*ItemRow, error)
	// Items returns up to q.Limit rows of a batch, in byte order of the item. Values are left out unless q.Values, and those
	// longer than 4 KiB always; ValueSize tells.
	Items(ctx context.Context, q ItemQuery) ([]ItemRow, error)
	// EndedItems returns up to limit items of a batch whose ids come after after, in byte order; "" is before all.
	EndedItems(ctx context.Context, run RunID, batch, after string, limit int) ([]EndedItem, error)
	// ItemSteps returns, like Steps, the steps of items that have no row; with failed, also those of failed items.
	ItemSteps(ctx context.Context, run RunID, after string, limit int, failed bool) ([]StepRow, error)
	// InheritItems copies the done items of a run's batch into another run, and returns how many these are.
	InheritItems(ctx context.Context, from, run RunID, batch string) (int64, error)
	// ItemCounts counts the items of a run's batches, in byte order of the batches. Batches without items are left out.
	ItemCounts(ctx context.Context, run RunID) ([]ItemCount, error)
	// ItemUsage adds up what the steps of items used that have succeeded and are of the run's own making.
	ItemUsage(ctx context.Context, run RunID) (Usage, error)
}

// ItemState says what has become of an item of a batch. One without a row is missing.
type ItemState string

// The states of an item. Neither changes any more.
const (
	ItemDone   ItemState = "done"
	ItemFailed ItemState = "failed" // its function returned an error
)

// ItemRow is a finished item of a batch.
type ItemRow struct {
	Run       RunID
	Batch     string // path of the batch's step
	Item      string // its id
	State     ItemState
	Epoch     int64 // of the claim that wrote it
	Ended     int64
	Inherited RunID  // the run that executed it; "" this one
	InputHash []byte // of the item
	Value     []byte // of a done item
	ValueSize int
	Fault     *fault.Fault // of a failed item
}

// EndedItem is what a batch that goes on needs of an item that has ended.
type EndedItem struct {
	Item      string
	State     ItemState
	InputHash []byte
}

// ItemQuery asks for a page of a batch's items.
type ItemQuery struct {
	Run    RunID
	Batch  string
	State  ItemState // "" both
	After  string
	Limit  int
	Values bool
}

// ItemCount is how far a batch is.
type ItemCount struct {
	Batch  string
	Done   int
	Failed int
	Reused int   // of the done ones, those that an earlier run has executed
	Last   int64 // when the last one ended that this run executed
}

// itemMark stands between the path of a batch and the id of an item. No other path has it, as names are not empty.
const itemMark = "//"

// itemPath is the scope of the steps of an item.
func itemPath(batch, item string) string { return batch + itemMark + escaper.Replace(item) }

var unescaper = strings.NewReplacer("%2F", "/", "%25", "%")

// Item gives the batch and the item that the step belongs to; "" if it is of none.
func (row *StepRow) Item() (batch, item string) {
	scope := itemScope(row.Name)
	if scope == "" {
		return "", ""
	}
	batch, item, _ = strings.Cut(scope, itemMark)
	if strings.Contains(item, "%") {
		item = unescaper.Replace(item)
	}
	return batch, item
}

// itemScope is the scope of the item that a step's path lies in; "" if it is none's.
func itemScope(path string) string {
	at := strings.Index(path, itemMark)
	if at < 0 {
		return ""
	}
	at += len(itemMark)
	if end := strings.IndexByte(path[at:], '/'); end >= 0 {
		return path[:at+end]
	}
	return path
}
