package sqlstore

import (
	"encoding/binary"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
)

// arrayTypes are PostgreSQL's: u for UUIDs, t for text, n for numbers, b for bytes, o for booleans; each with the number
// that the server knows the type of an element by.
var arrayTypes = map[byte]struct {
	name    string
	element uint32
}{'u': {"uuid[]", 2950}, 't': {"text[]", 25}, 'n': {"bigint[]", 20}, 'b': {"bytea[]", 17}, 'o': {"boolean[]", 16}}

// table turns rows into an array for each column, in the binary form of PostgreSQL's arrays. The values of a row are given
// one after the other, by the method of their type.
type table struct {
	rows    int
	types   string
	columns []array
	column  int    // where the next value goes
	set     uint64 // for rows of a shape: the fields that there are columns for …
	field   int    // … and the next one
}

// array is one column: a header, then the elements, each after its length.
type array struct {
	buf  []byte
	n    uint32
	null bool
}

const (
	arrayHeader = 20
	firstRoom   = 512      // of a column
	keptRoom    = 64 << 10 // of a column, for the next batch
	nullElement = 0xffffffff
)

// begin starts a row of columns of the types.
func (t *table) begin(types string) {
	if t.columns == nil {
		t.types, t.columns = types, make([]array, len(types))
		room := make([]byte, len(types)*firstRoom)
		for i := range t.columns {
			t.columns[i].buf = room[i*firstRoom : i*firstRoom+arrayHeader : (i+1)*firstRoom]
		}
	}
	t.rows++
	t.column, t.field = 0, 0
}

// reset takes out the rows. What args has given is not valid any more.
func (t *table) reset() {
	t.rows = 0
	for i := range t.columns {
		c := &t.columns[i]
		if cap(c.buf) > keptRoom {
			t.columns = nil
			return
		}
		*c = array{buf: c.buf[:arrayHeader]}
	}
}

// next is the column of the next value; nil if a row of this shape has none there.
func (t *table) next() *array {
	if t.set != 0 {
		at := t.field
		t.field++
		if t.set&(1<<at) == 0 {
			return nil
		}
	}
	c := &t.columns[t.column]
	t.column++
	c.n++
	return c
}

func (t *table) text(v string) {
	c := t.next()
	switch {
	case c == nil:
	case v == "":
		c.none()
	case t.types[t.column-1] == 'u':
		id, _ := uuid.Parse(v) // what is none gives one that names nothing
		c.buf = append(binary.BigEndian.AppendUint32(c.buf, 16), id[:]...)
	default:
		c.buf = append(binary.BigEndian.AppendUint32(c.buf, uint32(len(v))), v...)
	}
}

func (t *table) num(v int64) {
	switch c := t.next(); {
	case c == nil:
	case v == 0:
		c.none()
	default:
		c.number(v)
	}
}

func (t *table) time(v int64) {
	if v > pawl.AtWrite/2 {
		t.must(v - pawl.AtWrite) // what has to be added to the clock
	} else {
		t.num(v)
	}
}

func (t *table) must(v int64) {
	if c := t.next(); c != nil {
		c.number(v)
	}
}

func (c *array) number(v int64) {
	c.buf = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(c.buf, 8), uint64(v))
}

func (t *table) flag(v bool) {
	switch c := t.next(); {
	case c == nil:
	case v:
		c.buf = append(binary.BigEndian.AppendUint32(c.buf, 1), 1)
	default:
		c.none()
	}
}

func (t *table) data(v []byte) {
	switch c := t.next(); {
	case c == nil:
	case v == nil:
		c.none()
	default:
		c.buf = append(binary.BigEndian.AppendUint32(c.buf, uint32(len(v))), v...)
	}
}

func (c *array) none() {
	c.null = true
	c.buf = binary.BigEndian.AppendUint32(c.buf, nullElement)
}

// args are the arrays, complete.
func (t *table) args() [][]byte {
	args := make([][]byte, len(t.columns))
	for i := range t.columns {
		c := &t.columns[i]
		head := c.buf[:arrayHeader]
		binary.BigEndian.PutUint32(head, 1) // dimension
		nulls := uint32(0)
		if c.null {
			nulls = 1
		}
		binary.BigEndian.PutUint32(head[4:], nulls)
		binary.BigEndian.PutUint32(head[8:], arrayTypes[t.types[i]].element)
		binary.BigEndian.PutUint32(head[12:], c.n)
		binary.BigEndian.PutUint32(head[16:], 1) // where its index begins
		args[i] = c.buf
	}
	return args
}

// values are the values of the only row.
func (t *table) values() [][]byte {
	values := make([][]byte, len(t.columns))
	for i := range t.columns {
		if c := &t.columns[i]; !c.null {
			values[i] = c.buf[arrayHeader+4:]
		}
	}
	return values
}
