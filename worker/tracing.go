package worker

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	"starling/protocol"
)

// A job's trace goes on through its frames, its guest's environment and the post
// to the door: each names the span that it came out of. A worker without a
// tracer passes on the trace that the job came with.

// ContinueTrace is ctx with the trace that a job, or a command's environment,
// came with. What is no trace is none.
func ContinueTrace(ctx context.Context, traceparent string) context.Context {
	if !protocol.ValidTraceparent(traceparent) {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{protocol.HeaderTraceparent: traceparent})
}

// Traceparent is the trace of ctx as it is passed on; "" for none.
func Traceparent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier[protocol.HeaderTraceparent]
}

// span begins one step of a job. end ends it; an error marks it as failed.
func (w *Worker) span(ctx context.Context, name string, attributes ...attribute.KeyValue) (_ context.Context, end func(error)) {
	ctx, span := w.tracer.Start(ctx, name, oteltrace.WithAttributes(attributes...))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, protocol.Bound(err.Error()))
		}
		span.End()
	}
}

// jobSpan begins the span of a delivery, as a child of the dispatch.
func (w *Worker) jobSpan(ctx context.Context, job protocol.Job) (context.Context, oteltrace.Span) {
	return w.tracer.Start(ctx, "job", oteltrace.WithSpanKind(oteltrace.SpanKindConsumer), oteltrace.WithAttributes(
		attribute.String("starling.worker_id", string(w.cfg.WorkerID)), attribute.String("starling.pool", w.cfg.Pool),
		attribute.String("starling.delegation_id", string(job.DelegationID)), attribute.String("starling.task_id", string(job.TaskID)),
		attribute.String("starling.capsule", job.Capsule.String()),
	))
}
