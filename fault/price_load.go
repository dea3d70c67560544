package fault

import (
	"bytes"
	_ "embed" // of prices.json
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed prices.json
var listPrices []byte

const maxPrices = 4 << 20 // bytes of a price file

// DefaultPrices returns the table that comes with this package: list prices of the day that prices.json names, each with
// its source. Prices change often; [LoadPrices] brings newer ones in.
func DefaultPrices() *Prices { return defaultPrices() }

var defaultPrices = sync.OnceValue(func() *Prices {
	p := &Prices{rows: map[priceKey]Price{}}
	if err := p.load(listPrices); err != nil {
		panic(err) //nolint:forbidigo // the file is a part of the program, and a test loads it
	}
	return p
})

// LoadPrices returns the default table with the rows of a file laid over it: a row replaces the one of the same provider
// and model, or comes in addition. The file has the form of prices.json, of which a row needs no more than this, in
// dollars for a million tokens, with at most six decimals:
//
//	{"prices": [
//	  {"provider": "openai", "model": "gpt-4o", "input": 2.5, "cached": 1.25, "output": 10}
//	]}
//
// The optional members are cached and cache_write, which cost as much as input by default; long, with over and prices
// of its own; as_of, evidence, source and note. An error names line, model and member. A member that is not known is an
// error, as is a second row for one model.
func LoadPrices(r io.Reader) (*Prices, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPrices+1))
	if err != nil {
		return nil, fmt.Errorf("read prices: %w", err)
	}
	if len(data) > maxPrices {
		return nil, fmt.Errorf("read prices: more than %d bytes", maxPrices)
	}
	p := &Prices{rows: map[priceKey]Price{}}
	if err := p.load(data); err != nil {
		return nil, err
	}
	own := p.rows
	p.rows = maps.Clone(DefaultPrices().rows)
	maps.Copy(p.rows, own)
	return p, nil
}

// load adds the rows of a file to p.
func (p *Prices) load(data []byte) error {
	if err := json.Unmarshal(data, new(json.RawMessage)); err != nil {
		line := 1
		if syntax, ok := err.(*json.SyntaxError); ok {
			line = lineAt(data, syntax.Offset-1)
		}
		return &rowError{line: line, err: err}
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	lines := map[priceKey]int{}
	err := members(dec, func(name string) error {
		switch name {
		case "about":
			return dec.Decode(new([]string))
		case "as_of":
			var day string
			if err := dec.Decode(&day); err != nil {
				return err
			}
			return checkDay(day)
		case "prices":
			return elements(dec, func() error { return p.loadRow(dec, data, lines) })
		}
		return fmt.Errorf("unknown member %q", name)
	})
	if _, placed := err.(*rowError); err == nil || placed {
		return err
	}
	return &rowError{line: lineAt(data, dec.InputOffset()), err: err}
}

// loadRow reads one row. lines tells where each was.
func (p *Prices) loadRow(dec *json.Decoder, data []byte, lines map[priceKey]int) error {
	rest := data[dec.InputOffset():]
	line := lineAt(data, dec.InputOffset()+int64(len(rest)-len(bytes.TrimLeft(rest, " \t\r\n,"))))
	var row priceJSON
	if err := dec.Decode(&row); err != nil {
		return &rowError{line, row.Model, err}
	}
	price, err := row.price()
	if err != nil {
		return &rowError{line, row.Model, err}
	}
	key := priceKey{price.Provider, price.Model}
	if first, twice := lines[key]; twice {
		return &rowError{line, row.Model, fmt.Errorf("%s has it on line %d already", price.Provider, first)}
	}
	lines[key], p.rows[key] = line, price
	return nil
}

// rowError says where a price file is wrong.
type rowError struct {
	line  int
	model string // "" if unknown
	err   error
}

func (e *rowError) Error() string {
	if e.model == "" {
		return fmt.Sprintf("prices: line %d: %v", e.line, e.err)
	}
	return fmt.Sprintf("prices: line %d, model %.100q: %v", e.line, e.model, e.err)
}

func (e *rowError) Unwrap() error { return e.err }

// priceJSON is a row as it is written. Numbers stay text, so that no price is ever a binary fraction.
type priceJSON struct {
	Provider string `json:"provider"`
	Model    string `json:"model"`
	ratesJSON
	Long *struct {
		Over int64 `json:"over"`
		ratesJSON
	} `json:"long"`
	AsOf     string `json:"as_of"`
	Evidence string `json:"evidence"`
	Source   string `json:"source"`
	Note     string `json:"note"`
}

type ratesJSON struct {
	Input      json.Number `json:"input"`
	Cached     json.Number `json:"cached"`
	CacheWrite json.Number `json:"cache_write"`
	Output     json.Number `json:"output"`
}

func (j *priceJSON) price() (Price, error) {
	p := Price{
		Provider: strings.ToLower(j.Provider), Model: strings.ToLower(j.Model),
		AsOf: j.AsOf, Evidence: j.Evidence, Source: j.Source, Note: j.Note,
	}
	for _, text := range []struct{ member, value string }{{"provider", p.Provider}, {"model", p.Model}} {
		if text.value == "" || strings.ContainsAny(text.value, " \t\r\n") {
			return Price{}, fmt.Errorf("%s: %q is no name", text.member, text.value)
		}
	}
	if p.AsOf != "" {
		if err := checkDay(p.AsOf); err != nil {
			return Price{}, err
		}
	}
	var err error
	if p.Rates, err = j.rates(); err != nil {
		return Price{}, err
	}
	if j.Long == nil {
		return p, nil
	}
	if j.Long.Over <= 0 {
		return Price{}, fmt.Errorf("long.over: %d is no number of tokens", j.Long.Over)
	}
	p.LongOver = j.Long.Over
	if p.Long, err = j.Long.rates(); err != nil {
		return Price{}, fmt.Errorf("long.%w", err)
	}
	return p, nil
}

func (j *ratesJSON) rates() (r Rates, err error) {
	for _, f := range []struct {
		member string
		text   json.Number
		or     json.Number // where there is none
		to     *Rate
	}{
		{"input", j.Input, "", &r.Input},
		{"cached", j.Cached, j.Input, &r.Cached},
		{"cache_write", j.CacheWrite, j.Input, &r.CacheWrite},
		{"output", j.Output, "", &r.Output},
	} {
		if f.text == "" {
			f.text = f.or
		}
		if *f.to, err = parseRate(string(f.text)); err != nil {
			return Rates{}, fmt.Errorf("%s: %w", f.member, err)
		}
	}
	return r, nil
}

// parseRate reads dollars for a million tokens, "0.0375".
func parseRate(s string) (Rate, error) {
	if s == "" {
		return 0, errors.New("there is none")
	}
	whole, decimals, _ := strings.Cut(s, ".")
	decimals = strings.TrimRight(decimals, "0")
	if !digits(whole) || len(whole) > 6 || decimals != "" && !digits(decimals) || len(decimals) > 6 {
		return 0, fmt.Errorf("%.40s is no price: want dollars for a million tokens, below a million and with at most six decimals", s)
	}
	n, err := strconv.ParseInt(whole+decimals+strings.Repeat("0", 6-len(decimals)), 10, 64)
	return Rate(n), err
}

func checkDay(s string) error {
	if _, err := time.Parse(time.DateOnly, s); err != nil {
		return fmt.Errorf("as_of: %.40q is no day such as 2026-11-18", s)
	}
	return nil
}

// members calls read with each name of the object that comes next; read takes the value.
func members(dec *json.Decoder, read func(name string) error) error {
	return within(dec, '{', func() error {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		return read(name.(string)) // nothing else can be there
	})
}

// elements calls read for each element of the array that comes next.
func elements(dec *json.Decoder, read func() error) error { return within(dec, '[', read) }

func within(dec *json.Decoder, opening json.Delim, read func() error) error {
	if t, err := dec.Token(); err != nil {
		return err
	} else if t != opening {
		return fmt.Errorf("want a %v, not %v", opening, t)
	}
	for dec.More() {
		if err := read(); err != nil {
			return err
		}
	}
	_, err := dec.Token()
	return err
}

// lineAt returns the line, from 1, of an offset.
func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:max(0, min(offset, int64(len(data))))], []byte("\n"))
}
