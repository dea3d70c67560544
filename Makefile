# Everything here works from a clean clone with Go alone, as root or not; `make help` lists it.

GOLANGCI := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The race detector watches our code and every library but the translated SQLite, which shares no variable with anything else
# and knows only its own locks: instrumenting it, and checking each of its pointer conversions, takes most of the tests' time.
RACE := -race -gcflags='modernc.org/...=-d=checkptr=0' -gcflags='modernc.org/sqlite/lib=-d=checkptr=0 -race=0'

# Whatever GOFLAGS the environment has, the results are the same. (Set but empty, Go would read it from its own file.)
override GOFLAGS := -buildvcs=false
export GOFLAGS

.DEFAULT_GOAL := help
.PHONY: help test crash torture broken demo bench lint cover

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | sort

# How long each store is tortured, which of them, the seed of all random choices, and more flags; see docs/torture.md.
MINUTES ?= 5
STORE ?= both
SEED ?= 0
MORE ?=

# The crash and torture tests measure leases of seconds, so nothing else runs beside them. The torture has no use for the
# race detector: its workers are processes, and share no memory. The SDKs are a module of their own; they are
# large, and compiled without the race detector, under which package fault tests the same transport.
test: ## all tests, on SQLite and on a real PostgreSQL, with the race detector; of the crash matrix the telling points; under real SDKs
	@scripts/need-cc
	@scripts/need-postgres
	go test $(RACE) -timeout 20m . ./postgres $$(go list ./... | grep -v -e /internal/crashtest -e /internal/torture) # the longest first
	go test -timeout 20m -run TestBatchOfThousands . -args -thorough
	go test $(RACE) -short -timeout 20m ./internal/crashtest
	go test -short -timeout 20m ./internal/torture
	cd internal/sdktest && go test -timeout 20m ./...

crash: ## the whole crash matrix: every point, every kind, both stores, SIGKILL and SIGSTOP (about 15 minutes)
	@scripts/need-cc
	@scripts/need-postgres
	go test -timeout 30m . -args -thorough
	go test $(RACE) -timeout 30m ./internal/crashtest

torture: ## kills, freezes and cuts off workers at random and counts: MINUTES=5 STORE=sqlite|postgres|both SEED=0 (a new one)
	@scripts/need-postgres
	go test -count=1 -v -timeout 0 ./internal/torture -args -chaos $(MINUTES)m -store $(STORE) -seed $(SEED) $(MORE)

broken: ## leaves out one rule of the protocol at a time, and has the torture tell (about 6 minutes)
	@scripts/need-postgres
	go test -tags pawlbroken -count=1 -v -timeout 0 -run TestBroken ./internal/torture

demo: ## the demonstration
	go run ./cmd/pawl demo

# How often each peer is measured. QUICK=1 is one short round of a part, which writes nothing and says little about speed.
ROUNDS ?= 3
QUICK ?=

bench: ## measures beside hand-written floors, DBOS and River, and writes docs/benchmarks.md: ROUNDS=3 (about an hour) or QUICK=1
	@scripts/need-postgres || echo "bench: without PostgreSQL only SQLite is measured"
	cd bench && go run . $(if $(QUICK),-quick,-rounds $(ROUNDS) -write ../docs/benchmarks.md)

lint: ## gofmt and golangci-lint, with go vet in it (the first run compiles it: about 3 minutes on 2 cores)
	@bad=$$(gofmt -l .) && if [ -n "$$bad" ]; then echo "gofmt -w these:"; echo "$$bad"; exit 1; fi
	CGO_ENABLED=0 go run -gcflags='all=-N -l' $(GOLANGCI) run ./... # compiled for one run: without optimizing it

cover: ## tests with coverage, into cover.out and cover.html
	@scripts/need-postgres
	go test -timeout 20m -coverpkg=./... -coverprofile=cover.out ./...
	go tool cover -html=cover.out -o cover.html
	@go tool cover -func=cover.out | tail -n 1
