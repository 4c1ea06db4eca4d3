// What package wasmtimex uses of the C interface of wasmtime v39, declared by
// hand: the binding's own headers lie inside its module and cannot be included
// from here. The layouts are those of wasm.h, wasmtime/extern.h and
// wasmtime/val.h of v39.0.1; wasmtimex.Check compares their sizes at start.
#ifndef STARLING_WASMTIMEX_H
#define STARLING_WASMTIMEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct wasm_config_t wasm_config_t;
typedef struct wasm_engine_t wasm_engine_t;
typedef struct wasm_trap_t wasm_trap_t;
typedef struct wasm_valtype_t wasm_valtype_t;
typedef struct wasm_functype_t wasm_functype_t;
typedef struct wasi_config_t wasi_config_t;
typedef struct wasmtime_error wasmtime_error_t;
typedef struct wasmtime_module wasmtime_module_t;
typedef struct wasmtime_linker wasmtime_linker_t;
typedef struct wasmtime_store wasmtime_store_t;
typedef struct wasmtime_context wasmtime_context_t;
typedef struct wasmtime_caller wasmtime_caller_t;
typedef struct wasmtime_instance_pre wasmtime_instance_pre_t;

typedef struct { size_t size; char *data; } wasm_byte_vec_t;
typedef struct { size_t size; wasm_valtype_t **data; } wasm_valtype_vec_t;

typedef struct { uint64_t store_id; void *private1; } wasmtime_func_t;
typedef struct { uint64_t store_id; size_t private1; } wasmtime_instance_t;
typedef struct {
  struct { uint64_t store_id; uint32_t private1; };
  uint32_t private2;
} wasmtime_memory_t;
typedef struct { uint64_t store_id; uint32_t private1, private2, private3; } wasmtime_global_t;

enum { TRAP_STACK_OVERFLOW = 0 };
enum { EXTERN_FUNC = 0, EXTERN_GLOBAL = 1, EXTERN_MEMORY = 3 };
typedef struct {
  uint8_t kind;
  union {
    wasmtime_func_t func;
    wasmtime_global_t global;
    wasmtime_memory_t memory;
    void *sharedmemory;
  } of;
} wasmtime_extern_t;

typedef struct {
  uint8_t kind;
  union { int32_t i32; int64_t i64; uint8_t v128[16]; struct { uint64_t a; uint32_t b, c; void *d; } ref; } of;
} wasmtime_val_t;

typedef union { int32_t i32; int64_t i64; uint8_t v128[16]; } wasmtime_val_raw_t;

// One guest. It lives from guest_new to guest_delete and is used by one thread
// at a time, the one that runs it.
typedef struct guest {
  uintptr_t handle;              // the Go side
  wasmtime_store_t *store;
  wasmtime_context_t *context;
  const wasmtime_linker_t *wasi; // the engine's own WASI functions
  const wasmtime_module_t *forwarder;
  wasmtime_instance_t instance;
  bool instantiated;
  int memory_state;              // 0 not looked up, 1 found, 2 there is none
  wasmtime_memory_t memory;
  bool forwards;                 // the forwarder has been instantiated
  wasmtime_instance_t forward_instance;
  wasm_trap_t *pending;          // a trap that a forwarded call ended in
  bool stopped;                  // the host stopped it
} guest;

// How a call into a guest ended.
enum { RESULT_RETURNED = 0, RESULT_TRAP = 1, RESULT_ERROR = 2 };
typedef struct {
  int kind;
  char *text;   // to be freed
  size_t text_len;
} result;

void config_harden(wasm_config_t *config);

typedef struct {
  uint32_t guests;                 // at a time
  size_t memory, memory_resident;  // bytes
  uint32_t tables;                 // of one guest
  size_t elements, table_resident; // of one table; resident in bytes
} pool;
void config_pool(wasm_config_t *config, const pool *p);

// Each returns NULL or an error's text, to be freed.
char *linker_new(wasm_engine_t *engine, wasmtime_linker_t **out);
char *linker_define(wasmtime_linker_t *linker, const char *module, size_t module_len, const char *name,
                    size_t name_len, const char *params, const char *results, uintptr_t id);
char *linker_pre(const wasmtime_linker_t *linker, const wasmtime_module_t *module, wasmtime_instance_pre_t **out);
void linker_free(wasmtime_linker_t *linker);
void pre_free(wasmtime_instance_pre_t *pre);

// argv and env are strings one after the other, each ended by NUL; env
// alternates names and values.
wasi_config_t *wasi_new(size_t argc, const char *argv, size_t envc, const char *env, const char *in, size_t in_len);
bool wasi_preopen(wasi_config_t *config, const char *host, const char *name, bool writable);
void wasi_free(wasi_config_t *config);

guest *guest_new(wasm_engine_t *engine, uintptr_t handle, const wasmtime_linker_t *wasi,
                 const wasmtime_module_t *forwarder, int64_t memory, int64_t elements, int64_t instances);
// guest_instantiate consumes config.
void guest_instantiate(guest *g, wasi_config_t *config, const wasmtime_instance_pre_t *pre, result *out);
// guest_call returns false when there is no such function.
bool guest_call(guest *g, const char *name, size_t name_len, result *out);
bool guest_global(guest *g, const char *name, size_t name_len, uint64_t *out);
// guest_forward calls the engine's own function; false leaves the trap pending.
bool guest_forward(guest *g, const char *name, size_t name_len, wasmtime_val_raw_t *args, size_t n);
void guest_delete(guest *g);

#endif
