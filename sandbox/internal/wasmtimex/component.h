// What package wasmtimex uses of the component model in the C interface of
// wasmtime v39, declared by hand as in shim.h. The layouts are those of
// wasmtime/config.h and wasmtime/component/*.h.
#ifndef STARLING_COMPONENT_H
#define STARLING_COMPONENT_H

#include "shim.h"

typedef struct wasmtime_component_t wasmtime_component_t;
typedef struct wasmtime_component_linker_t wasmtime_component_linker_t;
typedef struct wasmtime_component_linker_instance_t wasmtime_component_linker_instance_t;
typedef struct wasmtime_component_export_index_t wasmtime_component_export_index_t;

typedef struct { uint64_t store_id; uint32_t private1; } wasmtime_component_instance_t;
typedef struct {
  struct { uint64_t store_id; uint32_t private1; };
  uint32_t private2;
} wasmtime_component_func_t;

enum {
  COMPONENT_BOOL = 0, COMPONENT_U8 = 2, COMPONENT_S64 = 7, COMPONENT_U64 = 8, COMPONENT_STRING = 12,
  COMPONENT_RESULT = 19
};
typedef struct wasmtime_component_val {
  uint8_t kind;
  union {
    bool boolean;
    uint8_t u8;
    uint64_t u64; // and s64
    wasm_byte_vec_t string;
    struct { wasm_byte_vec_t discriminant; struct wasmtime_component_val *val; } variant; // the largest
    struct { bool is_ok; struct wasmtime_component_val *val; } result;
  } of;
} wasmtime_component_val_t;

typedef struct wasmtime_linear_memory {
  void *env;
  uint8_t *(*get_memory)(void *env, size_t *byte_size, size_t *byte_capacity);
  wasmtime_error_t *(*grow_memory)(void *env, size_t new_size);
  void (*finalizer)(void *);
} wasmtime_linear_memory_t;

typedef struct wasmtime_memory_creator {
  void *env;
  wasmtime_error_t *(*new_memory)(void *env, const void *type, size_t minimum, size_t maximum, size_t reserved,
                                  size_t guard, wasmtime_linear_memory_t *out);
  void (*finalizer)(void *);
} wasmtime_memory_creator_t;

// The linear memory of all guests of an engine, which has one at a time.
typedef struct {
  size_t limit, used; // bytes
  size_t wanted;      // what was refused last, with what was used then; 0: nothing was
} budget;

// A value that a component passes to a host function.
enum { VALUE_OTHER = 0, VALUE_NUMBER = 1, VALUE_STRING = 2 };
enum { MAX_COMPONENT_ARGS = 4 };
typedef struct {
  int kind;
  uint64_t number; // a bool, u8, u64, s64; a result: 1 is ok
  const char *text;
  size_t len;
} value;

// One component that runs, as guest in shim.h.
typedef struct {
  uintptr_t handle;
  wasmtime_store_t *store;
  wasmtime_context_t *context;
  wasmtime_component_instance_t instance;
  bool stopped; // the host stopped it
} component_guest;

// config_components gives an engine's guests their memory within *b, which lives
// as long as the engine.
void config_components(wasm_config_t *config, budget *b);

// Each returns NULL or an error's text, to be freed.
char *component_compile(wasm_engine_t *engine, const uint8_t *binary, size_t n, wasm_byte_vec_t *out);
void component_bytes_free(wasm_byte_vec_t *bytes);
char *component_load(wasm_engine_t *engine, const char *path, wasmtime_component_t **out);
void component_free(wasmtime_component_t *component);
char *component_linker_new(wasm_engine_t *engine, wasmtime_component_linker_t **out);
// An interface begins, is given its functions, and ends; one of the same name is
// replaced.
char *component_linker_begin(wasmtime_component_linker_t *linker, const char *name, size_t n,
                             wasmtime_component_linker_instance_t **out);
char *component_linker_add(wasmtime_component_linker_instance_t *interface, const char *name, size_t n, uintptr_t id);
void component_linker_end(wasmtime_component_linker_instance_t *interface);
void component_linker_free(wasmtime_component_linker_t *linker);

component_guest *component_guest_new(wasm_engine_t *engine, uintptr_t handle, int64_t elements, int64_t instances,
                                     int64_t tables, int64_t memories);
// component_instantiate consumes config.
void component_instantiate(component_guest *g, const wasmtime_component_linker_t *linker, wasi_config_t *config,
                           const wasmtime_component_t *component, result *out);
// component_run calls the function run of an exported interface, which has a
// result or none; false when there is none. status is 0, or 1 for the result
// err, or what the guest gave to exit.
bool component_run(component_guest *g, const char *interface, size_t n, bool has_result, result *out, int *status);
void component_guest_delete(component_guest *g);

bool wasi_output(wasi_config_t *config, const char *out, const char *err);

#endif
