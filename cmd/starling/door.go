package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"starling/completion"
	"starling/protocol"
)

func (a *app) doorCommand() *cobra.Command {
	var listen, session string
	cmd := &cobra.Command{
		Use:   "door",
		Short: "Open a parent's door and print what it is told, one JSON object a line",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := untilSignal(cmd.Context())
			defer cancel()
			return a.door(ctx, listen, protocol.SessionID(session))
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:7777", "address to listen on")
	cmd.Flags().StringVar(&session, "session", "", "session id of the parent; empty: a new one, printed")
	return cmd
}

func (a *app) door(ctx context.Context, listen string, session protocol.SessionID) error {
	if err := checkListen("--listen", listen); err != nil {
		return err
	}
	if session == "" {
		session = protocol.NewSessionID()
	}
	if err := protocol.ValidateName("session", string(session)); err != nil {
		return &usageError{fmt.Errorf("--session: %w", err)}
	}
	door, url, closeDoor, err := openDoor(listen, session)
	if err != nil {
		return fmt.Errorf("%w: give it a free address with --listen, such as 127.0.0.1:0 for any", err)
	}
	fmt.Fprintf(a.err, "door of session %s at %s\n", session, url)
	go func() {
		<-ctx.Done()
		door.Close() // ends the loop below
	}()
	for got := range door.Received() {
		if err == nil {
			err = a.printJSON(map[string]any{
				"origin": got.Class.Origin, "trust": got.Class.Trust, "delegation_id": got.DelegationID,
				"message_id": got.MessageID, "context_id": got.ContextID, "text": got.Text,
			})
		}
		if err != nil { // what was taken counts as told: say which, and take no more
			door.Close()
			fmt.Fprintf(a.err, "starling: door: message %s (delegation %q) was taken and not printed: starling result shows how it ended\n", got.MessageID, got.DelegationID)
		}
	}
	if err != nil {
		err = fmt.Errorf("door: what it is told cannot be printed, so it is closed: %v", err) // not %w: a broken pipe would end the command without a word
	}
	return errors.Join(err, closeDoor())
}

// checkListen judges the form of an address to listen on.
func checkListen(flag, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return &usageError{fmt.Errorf("%s: %w: it is HOST:PORT, such as 127.0.0.1:7777, or 127.0.0.1:0 for any free port", flag, err)}
	}
	return nil
}

// openDoor serves a door until the returned function closes it.
func openDoor(listen string, session protocol.SessionID) (door *completion.Door, url string, closeDoor func() error, err error) {
	if door, err = completion.NewDoor(completion.DoorConfig{SessionID: session}); err != nil {
		return nil, "", nil, &usageError{err}
	}
	url, stop, err := serve(listen, door)
	if err != nil {
		return nil, "", nil, fmt.Errorf("door: %w", err)
	}
	return door, url, func() error { door.Close(); return stop() }, nil
}

// serve serves HTTP until the returned function stops it.
func serve(listen string, handler http.Handler) (url string, stop func() error, err error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", listen) // it does not wait
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	return "http://" + listener.Addr().String(), func() error {
		err := server.Close()
		if end := <-served; !errors.Is(end, http.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		return err
	}, nil
}
