package guesthttp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"starling/sandbox/guest"
	"starling/sandbox/guest/guesthttp"
)

// A capsule that passes on a stream of server-sent events as it comes.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: The answer \n\ndata: is 42.\n\n")
	}))
	defer server.Close()

	ctx, stop := guest.Context(context.Background()) // ends when the task is canceled
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if err != nil {
		guest.TurnFailed(guest.FailOther, err.Error())
		return
	}
	answer, err := guesthttp.NewClient().Do(request)
	switch {
	case errors.Is(err, guesthttp.ErrNotGranted):
		guest.TurnFailed(guest.FailOther, "list the host in murmur.yaml: "+err.Error())
		return
	case err != nil:
		guest.TurnFailed(guest.FailOther, err.Error())
		return
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			guest.TextDelta(data)
		}
	}
	// Output:
	// {"event":"text-delta","text":"The answer "}
	// {"event":"text-delta","text":"is 42."}
}
