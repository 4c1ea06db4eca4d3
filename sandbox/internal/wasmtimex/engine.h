// What modules (shim.c) and components (component.c) both use of the C interface of
// wasmtime v39: errors, stores and their contexts. Not for Go.
#ifndef STARLING_ENGINE_H
#define STARLING_ENGINE_H

#include "shim.h"

extern void wasm_byte_vec_delete(wasm_byte_vec_t *);
extern wasmtime_error_t *wasmtime_error_new(const char *text);
extern void wasmtime_error_message(const wasmtime_error_t *, wasm_byte_vec_t *out);
extern void wasmtime_error_delete(wasmtime_error_t *);

extern wasmtime_store_t *wasmtime_store_new(wasm_engine_t *, void *data, void (*finalizer)(void *));
extern void wasmtime_store_delete(wasmtime_store_t *);
extern wasmtime_context_t *wasmtime_store_context(wasmtime_store_t *);
extern void wasmtime_store_limiter(wasmtime_store_t *, int64_t memory, int64_t elements, int64_t instances,
                                   int64_t tables, int64_t memories);
extern void wasmtime_store_epoch_deadline_callback(
    wasmtime_store_t *,
    wasmtime_error_t *(*callback)(wasmtime_context_t *, void *data, uint64_t *delta, uint8_t *kind), void *data,
    void (*finalizer)(void *));
extern void wasmtime_context_set_epoch_deadline(wasmtime_context_t *, uint64_t ticks);
extern void *wasmtime_context_get_data(const wasmtime_context_t *);
extern wasmtime_error_t *wasmtime_context_set_wasi(wasmtime_context_t *, wasi_config_t *);

// error_text consumes an error and gives its text, to be freed; NULL of NULL.
char *error_text(wasmtime_error_t *error);

#endif
