package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"starling/protocol"
	"starling/worker"
)

// tracing is where spans go. OpenTelemetry's own variables configure it; without
// an endpoint there are no spans, and the trace that a command or a job came with
// is passed on.
type tracing struct {
	trace.TracerProvider
	close func() error
}

// exportTimeout bounds how long a command waits for its last spans to be taken.
const exportTimeout = 5 * time.Second

// startTracing never fails a command for want of a collector: what cannot be
// exported is logged and dropped.
func startTracing(ctx context.Context, service string, log *slog.Logger) (tracing, error) {
	if !tracingAsked() {
		return tracing{noop.NewTracerProvider(), func() error { return nil }}, nil
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("spans not exported", "error", err) }))
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return tracing{}, &usageError{fmt.Errorf("the OTEL_EXPORTER_OTLP_ variables: %w", err)}
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", version())),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv()) // the operator's words win
	if err != nil {
		log.Warn("what traces say of this process is not whole", "error", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return tracing{provider, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exportTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			log.Warn("spans not exported", "error", err)
		}
		return nil
	}}, nil
}

// tracingAsked reports whether OpenTelemetry's variables name a place for spans.
func tracingAsked() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	exporter := cmp.Or(os.Getenv("OTEL_TRACES_EXPORTER"), "otlp")
	endpoint := cmp.Or(os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	return exporter == "otlp" && endpoint != ""
}

// dispatching begins the span of a dispatch, in the trace of whoever started this
// command, and gives the trace that the job's worker continues. end ends it.
func (t tracing) dispatching(ctx context.Context, job protocol.Job) (traceparent string, end func()) {
	ctx = worker.ContinueTrace(ctx, os.Getenv(protocol.TraceparentEnv))
	ctx, span := t.Tracer("starling/cmd").Start(ctx, "dispatch", trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(
			attribute.String("starling.pool", job.Pool), attribute.String("starling.delegation_id", string(job.DelegationID)),
			attribute.String("starling.task_id", string(job.TaskID)), attribute.String("starling.capsule", job.Capsule.String()),
		))
	return worker.Traceparent(ctx), func() { span.End() }
}
