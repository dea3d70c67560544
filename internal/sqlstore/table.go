package sqlstore

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/pawlrun/pawl"
)

// columnType is one of PostgreSQL's, with the number that the server knows it by.
type columnType struct {
	name   string
	number uint32
}

var columnTypes = map[byte]columnType{'u': {"uuid", 2950}, 't': {"text", 25}, 'n': {"bigint", 20}, 'b': {"bytea", 17}, 'o': {"boolean", 16}}

// typeOf is the type that a letter stands for: u UUID, t text, n number, b bytes, o boolean. A capital letter says that the rows
// of a batch mostly have the same value there.
func typeOf(letter byte) columnType { return columnTypes[letter|' '] }

func capital(letter byte) bool { return letter&' ' == 0 }

// form is a statement for the rows of a table. {rows} in its text stands for them, and {rows a b} for their columns a and b.
type form struct{ types, names, text string }

// formText is a form for rows that are even, or not.
type formText struct {
	*form
	even bool
}

// sql gives the text. In rows that are even, columns of a capital letter are one value for all rows and not an array, which costs the
// server much less.
func (f *form) sql(even bool) string {
	var b strings.Builder
	text := f.text
	for {
		before, rest, found := strings.Cut(text, "{rows")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		names, after, _ := strings.Cut(rest, "}")
		b.WriteString(f.rows(strings.Fields(names), even))
		text = after
	}
}

// rows is a sub-select of the columns, of all if none is named. Functions in its list give their rows one by one; in a FROM each
// would be stored first.
func (f *form) rows(names []string, even bool) string {
	var list []string
	for i, name := range strings.Fields(f.names) {
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		as := "unnest($%d::%s[]) AS %s"
		if even && capital(f.types[i]) {
			as = "$%d::%s AS %s"
		}
		list = append(list, fmt.Sprintf(as, i+1, typeOf(f.types[i]).name, name))
	}
	return "(SELECT " + strings.Join(list, ", ") + ")"
}

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
	buf   []byte
	n     uint32
	null  bool
	alike bool // all elements are like the first one, which alone is in buf
	last  int  // where the last element begins
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
	c.alike = capital(t.types[t.column]) && (c.n == 0 || c.alike)
	c.last = len(c.buf)
	c.n++
	t.column++
	return c
}

// added keeps an element that was appended, unless it is like all others.
func (c *array) added() {
	if !c.alike || c.n == 1 {
		return
	}
	first, mine := c.buf[arrayHeader:c.last], c.buf[c.last:]
	if bytes.Equal(first, mine) {
		c.buf = c.buf[:c.last]
		return
	}
	mine = bytes.Clone(mine)
	c.buf, c.n = c.buf[:c.last], c.n-1
	c.spread()
	c.buf, c.n = append(c.buf, mine...), c.n+1
}

// spread repeats the element that all are like.
func (c *array) spread() {
	first := c.buf[arrayHeader:]
	for range c.n - 1 {
		c.buf = append(c.buf, first...)
	}
	c.alike = false
}

// even reports whether the rows are the same wherever a capital letter says so.
func (t *table) even() bool {
	for i := range t.columns {
		if capital(t.types[i]) && !t.columns[i].alike {
			return false
		}
	}
	return true
}

func (t *table) text(v string) {
	c := t.next()
	switch {
	case c == nil:
	case v == "":
		c.none()
	case typeOf(t.types[t.column-1]).name == "uuid":
		id, _ := uuid.Parse(v) // what is none gives one that names nothing
		c.bytes(id[:])
	default:
		c.buf = append(binary.BigEndian.AppendUint32(c.buf, uint32(len(v))), v...)
		c.added()
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

func (t *table) flag(v bool) {
	switch c := t.next(); {
	case c == nil:
	case v:
		c.bytes([]byte{1})
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
		c.bytes(v)
	}
}

func (c *array) number(v int64) {
	c.buf = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(c.buf, 8), uint64(v))
	c.added()
}

func (c *array) bytes(v []byte) {
	c.buf = append(binary.BigEndian.AppendUint32(c.buf, uint32(len(v))), v...)
	c.added()
}

func (c *array) none() {
	c.null = true
	c.buf = binary.BigEndian.AppendUint32(c.buf, nullElement)
	c.added()
}

// args are the parameters of a form for these rows, even if they are.
func (t *table) args() [][]byte {
	even := t.even()
	args := make([][]byte, len(t.columns))
	for i := range t.columns {
		c := &t.columns[i]
		switch {
		case even && c.alike:
			args[i] = c.first()
			continue
		case c.alike:
			c.spread()
		}
		head := c.buf[:arrayHeader]
		binary.BigEndian.PutUint32(head, 1) // dimension
		nulls := uint32(0)
		if c.null {
			nulls = 1
		}
		binary.BigEndian.PutUint32(head[4:], nulls)
		binary.BigEndian.PutUint32(head[8:], typeOf(t.types[i]).number)
		binary.BigEndian.PutUint32(head[12:], c.n)
		binary.BigEndian.PutUint32(head[16:], 1) // where its index begins
		args[i] = c.buf
	}
	return args
}

// first is the first element, nil if it is NULL.
func (c *array) first() []byte {
	if binary.BigEndian.Uint32(c.buf[arrayHeader:]) == nullElement {
		return nil
	}
	n := binary.BigEndian.Uint32(c.buf[arrayHeader:])
	return c.buf[arrayHeader+4:][:n]
}

// values are the values of the only row.
func (t *table) values() [][]byte {
	values := make([][]byte, len(t.columns))
	for i := range t.columns {
		values[i] = t.columns[i].first()
	}
	return values
}
