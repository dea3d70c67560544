package fault

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
)

// Prices is a table of what models cost, for estimates. It is not changed once made, so it is safe for concurrent use.
// A nil table knows no model.
type Prices struct {
	rows map[priceKey]Price
}

// priceKey names a model as its own provider does: provider as in [Usage], model in lower case.
type priceKey struct{ provider, model string }

// Price is one row: what one provider lists for one model.
type Price struct {
	Provider string // as in [Usage]
	Model    string // in lower case and without a date, unless it is for that date's model alone
	Rates
	LongOver int64 // a request with more input tokens than this is charged at Long throughout; 0 if there is no such limit
	Long     Rates
	AsOf     string // day for which Source is known to say so, "2026-11-18"; "" if untold
	Evidence string // of the default table: "read", "transcribed" or "recalled"; "" if untold
	Source   string // URL; "" if untold
	Note     string // what the numbers leave out
}

// Rates are the prices of the four kinds of token.
type Rates struct {
	Input      Rate // neither read from a cache nor written to one
	Cached     Rate // read from the far end's cache
	CacheWrite Rate // written to it
	Output     Rate
}

// Rate is the price of one token in millionths of a micro-dollar. One million tokens at Rate r cost r micro-dollars.
type Rate int64

const rateUnit = 1_000_000 // Rate of one dollar for a million tokens

// String returns the price as it is listed, in dollars for a million tokens: "2.5".
func (r Rate) String() string {
	s := fmt.Sprintf("%d.%06d", r/rateUnit, r%rateUnit)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Estimate returns what u probably cost, in micro-dollars, rounded up. It returns false if nobody knows: a model that is
// not in the table, counts that cannot be, a sum beyond an int64. No estimate is not zero: a step that must not exceed a
// budget has to take it for expensive.
//
// A cost that the far end told, in u.ToldCostMicros, is what it returns then. Otherwise it is the list price, and blind
// to all that a list price is: discounts, batches, tiers of speed, surcharges of regions and clouds, tools, images and
// audio.
//
// Let u be the usage of one request where that can be had. A model may charge more for a long prompt, and the sum of
// several short ones looks like one.
func (p *Prices) Estimate(u Usage) (microUSD int64, ok bool) {
	for _, n := range []int64{u.InputTokens, u.CachedTokens, u.CacheWriteTokens, u.OutputTokens, u.ReasoningTokens, u.ToldCostMicros} {
		if n < 0 {
			return 0, false
		}
	}
	if u.ToldCostMicros > 0 {
		return u.ToldCostMicros, true
	}
	price, ok := p.Price(u)
	if !ok {
		return 0, false
	}
	rates := price.Rates
	if price.LongOver > 0 && u.InputTokens > price.LongOver {
		rates = price.Long
	}
	if u.CachedTokens > u.InputTokens || u.CacheWriteTokens > u.InputTokens-u.CachedTokens {
		return 0, false // parts of more than the whole
	}
	var sum total
	sum.add(u.InputTokens-u.CachedTokens-u.CacheWriteTokens, rates.Input)
	sum.add(u.CachedTokens, rates.Cached)
	sum.add(u.CacheWriteTokens, rates.CacheWrite)
	sum.add(u.OutputTokens, rates.Output)
	return sum.micros()
}

// total is a sum of a few products in 128 bits. Each is below 2^103, as no rate is a million dollars or more.
type total struct{ high, low uint64 }

func (t *total) add(tokens int64, r Rate) {
	high, low := bits.Mul64(uint64(tokens), uint64(r))
	var carry uint64
	t.low, carry = bits.Add64(t.low, low, 0)
	t.high, _ = bits.Add64(t.high, high, carry)
}

// micros returns the sum in micro-dollars, rounded up, and whether it is an int64.
func (t *total) micros() (int64, bool) {
	if t.high >= rateUnit {
		return 0, false
	}
	n, rest := bits.Div64(t.high, t.low, rateUnit)
	if n >= math.MaxInt64 {
		return 0, false
	}
	if rest > 0 {
		n++
	}
	return int64(n), true
}

// Price returns the row by which [Prices.Estimate] judges u, by its Provider and Model alone.
//
// The model is looked for under its own name first, then without what providers append: a date, as in
// gpt-4o-2024-08-06, and -latest. A name that only begins like another's is never taken for it. What is bought through
// Azure, Vertex, Bedrock or OpenRouter is looked for under the names of its maker too, so a Bedrock
// us.anthropic.claude-sonnet-4-5-20250929-v1:0 is Anthropic's claude-sonnet-4-5. Where the provider is not known, a
// model counts whose name only one provider has.
func (p *Prices) Price(u Usage) (Price, bool) {
	if p == nil {
		return Price{}, false
	}
	for _, key := range priceKeys(strings.ToLower(u.Provider), strings.ToLower(strings.TrimSpace(u.Model))) {
		for _, model := range []string{key.model, undated(key.model)} {
			if row, ok := p.row(priceKey{key.provider, model}); ok {
				return row, true
			}
		}
	}
	return Price{}, false
}

// row returns a row by its exact key; an empty provider is any, if only one has the model.
func (p *Prices) row(key priceKey) (Price, bool) {
	if key.provider != "" {
		row, ok := p.rows[key]
		return row, ok
	}
	var found []Price
	for k, row := range p.rows {
		if k.model == key.model {
			found = append(found, row)
		}
	}
	if len(found) != 1 {
		return Price{}, false
	}
	return found[0], true
}

// priceKeys returns under which keys a provider's model may be listed, the surest first.
func priceKeys(provider, model string) []priceKey {
	keys := []priceKey{{provider, model}}
	switch provider {
	case "", generic.name:
		keys = append(keys, priceKey{"", model})
	case gemini.name:
		keys = append(keys, priceKey{provider, afterLast(model, "/")}) // models/gemini-2.5-pro
	case azureOpenAI.name:
		keys = append(keys, priceKey{openAI.name, model})
	case vertex.name: // publishers/anthropic/models/claude-sonnet-4-5@20250929
		name := strings.Replace(afterLast(model, "/"), "@", "-", 1)
		keys = append(keys, priceKey{gemini.name, name}, priceKey{anthropic.name, name}, priceKey{mistral.name, name})
	case bedrock.name: // arn:…/us.anthropic.claude-sonnet-4-5-20250929-v1:0
		keys = append(keys, bedrockKeys(afterLast(model, "/"))...)
	case openRouter.name: // anthropic/claude-sonnet-4.5; what follows a colon, as in :free, has a price of its own
		vendor, name, _ := strings.Cut(model, "/")
		maker := makerOf(vendor)
		if maker == "" {
			break
		}
		if maker == anthropic.name {
			name = strings.ReplaceAll(name, ".", "-")
		}
		keys = append(keys, priceKey{maker, name})
	}
	return keys
}

// makerOf returns the provider that lists the prices of a maker, by the maker's name at OpenRouter and Bedrock.
func makerOf(name string) string {
	switch name {
	case "openai", "anthropic", "mistral", "cohere", "deepseek":
		return name
	case "google":
		return gemini.name
	case "mistralai":
		return mistral.name
	case "x-ai":
		return xAI.name
	}
	return ""
}

// bedrockKeys takes apart [region.]maker.model[-v1][:0].
func bedrockKeys(model string) []priceKey {
	model, _, _ = strings.Cut(model, ":")
	if i := strings.LastIndex(model, "-v"); i >= 0 && digits(model[i+len("-v"):]) {
		model = model[:i]
	}
	maker, name, _ := strings.Cut(model, ".")
	if makerOf(maker) == "" && maker != "amazon" { // a region: us, eu, apac, global
		model = name
		maker, name, _ = strings.Cut(model, ".")
	}
	keys := []priceKey{{bedrock.name, model}}
	if by := makerOf(maker); by != "" {
		keys = append(keys, priceKey{by, name})
	}
	return keys
}

// undated returns a model's name without the date or the -latest at its end. Four digits are no date: providers
// give a version of another price such a number.
func undated(model string) string {
	if name, ok := strings.CutSuffix(model, "-latest"); ok {
		return name
	}
	for _, form := range []string{"-dddd-dd-dd", "-dddddddd"} {
		if len(model) <= len(form) {
			continue
		}
		at := len(model) - len(form)
		if strings.Map(digitToD, model[at:]) == form {
			return model[:at]
		}
	}
	return model
}

// digitToD turns a date into its form. A d stays none.
func digitToD(r rune) rune {
	switch {
	case '0' <= r && r <= '9':
		return 'd'
	case r == 'd':
		return 'x'
	}
	return r
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func afterLast(s, sep string) string { return s[strings.LastIndex(s, sep)+1:] }
