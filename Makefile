# `make check` is the gate: everything but the slow suites. CI runs `make check`
# and then `make slow`.
GOFUMPT     = mvdan.cc/gofumpt@v0.12.0
STATICCHECK = honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOLANGCI    = github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
DEADCODE    = golang.org/x/tools/cmd/deadcode@v0.52.0

.PHONY: all build test check fmt vet lint arrows tidy race slow cluster fleet crash races hosts limits soak thirdparty fuzz bench deadcode golangci

all: build

build:
	go build -o bin/starling ./cmd/starling

test:
	go test ./...

check: fmt vet lint arrows tidy race

fmt:
	@out=$$(go run $(GOFUMPT) -l .); if [ -n "$$out" ]; then echo "not formatted (run: go run $(GOFUMPT) -w .):"; echo "$$out"; exit 1; fi

vet:
	go vet ./...
	GOOS=wasip1 GOARCH=wasm go vet ./sandbox/guest/...
	go vet -tags 'fleet crashpoints cluster hosts limits soak thirdparty' ./...

lint:
	go run $(STATICCHECK) -tags 'fleet crashpoints cluster hosts limits soak thirdparty' ./...

# Imports point down only: see CONTRIBUTING.md.
arrows:
	go test -count=1 -run 'TestArrows' ./cmd/starling

tidy:
	go mod tidy -diff

race:
	go test -race -shuffle=on -count=1 -timeout 30m ./...

# The slow suites.
slow: cluster fleet crash races hosts limits soak thirdparty fuzz

# Three servers in one cluster: what answers differently there, again and again; and
# as processes that are restarted and killed under load. About 8 minutes on two busy cores.
cluster:
	go test -race -count=3 -run 'ThreeReplicas|Cluster' ./broker ./testenv
	go test -count=1 -tags cluster -run 'TestCluster' -v -timeout 20m ./cmd/starling

# Workers as processes: 500 jobs, two of four workers killed, one drained.
fleet:
	go test -count=1 -tags fleet -run 'TestFleet' -v -timeout 20m ./cmd/starling

# Workers as processes, killed at each step of a job's life, or stalled there past the
# ack wait and then back; with one server and with three.
crash:
	go test -count=1 -tags crashpoints -parallel 6 -run 'Crash|Zombie' -v -timeout 30m ./cmd/starling

# Cancel and deadline at random moments of 1,000 jobs' lives; RACES_SEED=n repeats a run.
races:
	RACES=1000 go test -race -count=1 -run 'TestCancelAndDeadlineRaces' -v -timeout 20m ./worker

# Three hosts, a parent's host and a faulty network between them. Needs root, and the
# programs ip and iptables (packages iproute2 and iptables). About 6 minutes on two busy cores.
hosts:
	go test -count=1 -tags hosts -run 'TestHosts' -v -timeout 20m ./cmd/starling

# What is full, slow or many: see docs/operations.md, Limits. Needs root for small
# disks. About 4 minutes on two busy cores.
limits:
	go test -count=1 -tags limits -run 'TestLimits' -v -timeout 20m ./cmd/starling

# A fleet and its servers under random faults, audited, with memory, goroutines, files
# and storage measured: `make soak DURATION=20m SEED=n RATE=15 SERVERS=3`. The seed is
# printed, and repeats faults and jobs. Takes DURATION and about a minute or two.
DURATION = 90s
soak:
	SOAK_DURATION=$(DURATION) SOAK_SEED=$(SEED) SOAK_RATE=$(RATE) SOAK_SERVERS=$(SERVERS) \
		go test -count=1 -tags soak -run 'TestSoak' -v -timeout 3h ./cmd/starling

# Programs that know nothing of Starling, as capsules.
thirdparty:
	go test -count=1 -tags thirdparty -run 'TestThirdParty' -v -timeout 20m ./cmd/starling

# A number of inputs, not a time: until Go 1.27 a fuzz test that ends by its time may fail
# with "context deadline exceeded" (go.dev/issue/75804).
FUZZTIME = 40000x
fuzz:
	@for pkg in protocol sandbox sandbox/guest/guesthttp sandbox/internal/wasm worker; do \
		for name in $$(go test -list 'Fuzz.*' ./$$pkg | grep '^Fuzz'); do \
			echo "fuzz ./$$pkg $$name"; go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) ./$$pkg || exit 1; \
		done; \
	done

bench: build
	bin/starling bench
	bin/starling bench --door

deadcode:
	go run $(DEADCODE) -test ./...

golangci:
	go run $(GOLANGCI) run
