#include "component.h"
#include "engine.h"
#include "_cgo_export.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct { size_t size; void **data; } wasm_frame_vec_t;
extern void wasm_frame_vec_delete(wasm_frame_vec_t *);
extern bool wasmtime_error_exit_status(const wasmtime_error_t *, int *status);
extern void wasmtime_error_wasm_trace(const wasmtime_error_t *, wasm_frame_vec_t *out);

extern void wasmtime_config_host_memory_creator_set(wasm_config_t *, wasmtime_memory_creator_t *);
extern void wasmtime_config_memory_init_cow_set(wasm_config_t *, bool);
extern bool wasi_config_set_stdout_file(wasi_config_t *, const char *path);
extern bool wasi_config_set_stderr_file(wasi_config_t *, const char *path);

typedef wasmtime_error_t *(*component_callback)(void *env, wasmtime_context_t *, const void *type,
                                                wasmtime_component_val_t *args, size_t nargs,
                                                wasmtime_component_val_t *results, size_t nresults);
extern wasmtime_error_t *wasmtime_component_new(const wasm_engine_t *, const uint8_t *binary, size_t n,
                                                wasmtime_component_t **out);
extern wasmtime_error_t *wasmtime_component_serialize(const wasmtime_component_t *, wasm_byte_vec_t *out);
extern wasmtime_error_t *wasmtime_component_deserialize_file(const wasm_engine_t *, const char *path,
                                                             wasmtime_component_t **out);
extern void wasmtime_component_delete(wasmtime_component_t *);
extern wasmtime_component_linker_t *wasmtime_component_linker_new(const wasm_engine_t *);
extern void wasmtime_component_linker_allow_shadowing(wasmtime_component_linker_t *, bool);
extern wasmtime_error_t *wasmtime_component_linker_add_wasip2(wasmtime_component_linker_t *);
extern wasmtime_component_linker_instance_t *wasmtime_component_linker_root(wasmtime_component_linker_t *);
extern void wasmtime_component_linker_delete(wasmtime_component_linker_t *);
extern wasmtime_error_t *wasmtime_component_linker_instance_add_instance(
    wasmtime_component_linker_instance_t *, const char *name, size_t n, wasmtime_component_linker_instance_t **out);
extern wasmtime_error_t *wasmtime_component_linker_instance_add_func(
    wasmtime_component_linker_instance_t *, const char *name, size_t n, component_callback, void *data,
    void (*finalizer)(void *));
extern void wasmtime_component_linker_instance_delete(wasmtime_component_linker_instance_t *);
extern wasmtime_error_t *wasmtime_component_linker_instantiate(
    const wasmtime_component_linker_t *, wasmtime_context_t *, const wasmtime_component_t *,
    wasmtime_component_instance_t *out);
extern wasmtime_component_export_index_t *wasmtime_component_instance_get_export_index(
    const wasmtime_component_instance_t *, wasmtime_context_t *, const wasmtime_component_export_index_t *,
    const char *name, size_t n);
extern void wasmtime_component_export_index_delete(wasmtime_component_export_index_t *);
extern bool wasmtime_component_instance_get_func(const wasmtime_component_instance_t *, wasmtime_context_t *,
                                                 const wasmtime_component_export_index_t *,
                                                 wasmtime_component_func_t *out);
extern wasmtime_error_t *wasmtime_component_func_call(const wasmtime_component_func_t *, wasmtime_context_t *,
                                                      const wasmtime_component_val_t *args, size_t nargs,
                                                      wasmtime_component_val_t *results, size_t nresults);
extern wasmtime_error_t *wasmtime_component_func_post_return(const wasmtime_component_func_t *, wasmtime_context_t *);
extern void wasmtime_component_val_delete(wasmtime_component_val_t *);

// A linear memory: guard, the bytes in use, the rest of what is reserved, guard.
// All but the bytes in use cannot be touched.
typedef struct {
  budget *budget;
  uint8_t *map, *base;
  size_t mapped, size, capacity;
} region;

// charge takes a memory's growth from one size to another out of the budget.
static bool charge(budget *b, size_t from, size_t to) {
  size_t total = b->used - from + to;
  if (to > b->limit || total > b->limit) {
    b->wanted = total;
    return false;
  }
  b->used = total;
  return true;
}

static uint8_t *region_get(void *env, size_t *size, size_t *capacity) {
  region *r = env;
  *size = r->size;
  *capacity = r->capacity;
  return r->base;
}

static wasmtime_error_t *region_grow(void *env, size_t size) {
  region *r = env;
  if (size > r->capacity || size < r->size) return wasmtime_error_new("memory cannot grow that far");
  if (!charge(r->budget, r->size, size)) return wasmtime_error_new("memory limit");
  if (mprotect(r->base, size, PROT_READ | PROT_WRITE) != 0) {
    charge(r->budget, size, r->size);
    return wasmtime_error_new("out of memory");
  }
  r->size = size;
  return NULL;
}

static void region_free(void *env) {
  region *r = env;
  charge(r->budget, r->size, 0);
  munmap(r->map, r->mapped);
  free(r);
}

static wasmtime_error_t *region_new(void *env, const void *type, size_t minimum, size_t maximum, size_t reserved,
                                    size_t guard, wasmtime_linear_memory_t *out) {
  (void)type;
  (void)maximum;
  budget *b = env;
  if (reserved < minimum) reserved = minimum;
  if (!charge(b, 0, minimum)) return wasmtime_error_new("memory limit");
  region *r = calloc(1, sizeof(region));
  if (r == NULL) return wasmtime_error_new("out of memory");
  r->budget = b;
  r->mapped = guard + reserved + guard;
  r->map = mmap(NULL, r->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (r->map == MAP_FAILED) {
    charge(b, minimum, 0);
    free(r);
    return wasmtime_error_new("out of address space");
  }
  r->base = r->map + guard;
  r->size = minimum;
  r->capacity = reserved;
  if (minimum > 0 && mprotect(r->base, minimum, PROT_READ | PROT_WRITE) != 0) {
    region_free(r);
    return wasmtime_error_new("out of memory");
  }
  out->env = r;
  out->get_memory = region_get;
  out->grow_memory = region_grow;
  out->finalizer = region_free;
  return NULL;
}

void config_components(wasm_config_t *config, budget *b) {
  wasmtime_memory_creator_t creator = {.env = b, .new_memory = region_new};
  wasmtime_config_host_memory_creator_set(config, &creator);
  // A memory with data would abort the process: only the engine's own can map an image.
  wasmtime_config_memory_init_cow_set(config, false);
}

char *component_compile(wasm_engine_t *engine, const uint8_t *binary, size_t n, wasm_byte_vec_t *out) {
  wasmtime_component_t *component = NULL;
  char *problem = error_text(wasmtime_component_new(engine, binary, n, &component));
  if (problem != NULL) return problem;
  problem = error_text(wasmtime_component_serialize(component, out));
  wasmtime_component_delete(component);
  return problem;
}

void component_bytes_free(wasm_byte_vec_t *bytes) { wasm_byte_vec_delete(bytes); }

char *component_load(wasm_engine_t *engine, const char *path, wasmtime_component_t **out) {
  return error_text(wasmtime_component_deserialize_file(engine, path, out));
}

void component_free(wasmtime_component_t *component) { wasmtime_component_delete(component); }

char *component_linker_new(wasm_engine_t *engine, wasmtime_component_linker_t **out) {
  *out = wasmtime_component_linker_new(engine);
  wasmtime_component_linker_allow_shadowing(*out, true);
  return error_text(wasmtime_component_linker_add_wasip2(*out));
}

char *component_linker_begin(wasmtime_component_linker_t *linker, const char *name, size_t n,
                             wasmtime_component_linker_instance_t **out) {
  wasmtime_component_linker_instance_t *root = wasmtime_component_linker_root(linker);
  char *problem = error_text(wasmtime_component_linker_instance_add_instance(root, name, n, out));
  wasmtime_component_linker_instance_delete(root);
  return problem;
}

// flat reads a value; one that no host function takes is VALUE_OTHER.
static value flat(const wasmtime_component_val_t *v) {
  value out = {0};
  switch (v->kind) {
    case COMPONENT_BOOL:
      out.kind = VALUE_NUMBER, out.number = v->of.boolean;
      break;
    case COMPONENT_U8:
      out.kind = VALUE_NUMBER, out.number = v->of.u8;
      break;
    case COMPONENT_S64:
    case COMPONENT_U64:
      out.kind = VALUE_NUMBER, out.number = v->of.u64;
      break;
    case COMPONENT_RESULT:
      out.kind = VALUE_NUMBER, out.number = v->of.result.is_ok;
      break;
    case COMPONENT_STRING:
      out.kind = VALUE_STRING, out.text = v->of.string.data, out.len = v->of.string.size;
      break;
  }
  return out;
}

// component_host is called by a guest. env is the function's number. What the
// guest declares as its type is the guest's word: Go looks at what came.
static wasmtime_error_t *component_host(void *env, wasmtime_context_t *context, const void *type,
                                        wasmtime_component_val_t *args, size_t nargs,
                                        wasmtime_component_val_t *results, size_t nresults) {
  (void)type;
  component_guest *g = wasmtime_context_get_data(context);
  value values[MAX_COMPONENT_ARGS];
  bool answer = false;
  if (nargs > MAX_COMPONENT_ARGS || nresults > 1)
    return wasmtime_error_new("a function of the host was imported with another type than it has");
  for (size_t i = 0; i < nargs; i++) values[i] = flat(&args[i]);
  switch (goComponentHost(g->handle, (uintptr_t)env, values, nargs, &answer)) {
    case 0:
      break;
    case 1:
      g->stopped = true;
      return wasmtime_error_new("stopped by the host");
    default:
      return wasmtime_error_new("a function of the host was imported with another type than it has");
  }
  if (nresults == 1) {
    results[0].kind = COMPONENT_BOOL;
    results[0].of.boolean = answer;
  }
  return NULL;
}

char *component_linker_add(wasmtime_component_linker_instance_t *interface, const char *name, size_t n, uintptr_t id) {
  return error_text(
      wasmtime_component_linker_instance_add_func(interface, name, n, component_host, (void *)id, NULL));
}

void component_linker_end(wasmtime_component_linker_instance_t *interface) {
  wasmtime_component_linker_instance_delete(interface);
}

void component_linker_free(wasmtime_component_linker_t *linker) { wasmtime_component_linker_delete(linker); }

static wasmtime_error_t *component_tick(wasmtime_context_t *context, void *data, uint64_t *delta, uint8_t *kind) {
  (void)context;
  component_guest *g = data;
  if (goComponentTick(g->handle) != 0) {
    g->stopped = true;
    return wasmtime_error_new("interrupted by the host");
  }
  *delta = 1;
  *kind = 0;
  return NULL;
}

component_guest *component_guest_new(wasm_engine_t *engine, uintptr_t handle, int64_t elements, int64_t instances,
                                     int64_t tables, int64_t memories) {
  component_guest *g = calloc(1, sizeof(component_guest));
  if (g == NULL) return NULL;
  g->handle = handle;
  g->store = wasmtime_store_new(engine, g, NULL);
  g->context = wasmtime_store_context(g->store);
  // The memory itself is bounded by the budget, over all memories together.
  wasmtime_store_limiter(g->store, -1, elements, instances, tables, memories);
  wasmtime_context_set_epoch_deadline(g->context, 1);
  wasmtime_store_epoch_deadline_callback(g->store, component_tick, g, NULL);
  return g;
}

// component_fill takes ownership of error. One that has a trace of the guest is
// a trap.
static void component_fill(const component_guest *g, result *out, wasmtime_error_t *error) {
  memset(out, 0, sizeof(*out));
  if (error == NULL) return;
  out->kind = RESULT_ERROR;
  if (g->stopped) { // why is the host's to know
    wasmtime_error_delete(error);
    return;
  }
  wasm_frame_vec_t frames = {0};
  wasmtime_error_wasm_trace(error, &frames);
  if (frames.size > 0) out->kind = RESULT_TRAP;
  wasm_frame_vec_delete(&frames);
  out->text = error_text(error);
  if (out->text != NULL) out->text_len = strlen(out->text);
}

void component_instantiate(component_guest *g, const wasmtime_component_linker_t *linker, wasi_config_t *config,
                           const wasmtime_component_t *component, result *out) {
  wasmtime_error_t *error = wasmtime_context_set_wasi(g->context, config);
  if (error == NULL) error = wasmtime_component_linker_instantiate(linker, g->context, component, &g->instance);
  component_fill(g, out, error);
}

static bool find_run(component_guest *g, const char *interface, size_t n, wasmtime_component_func_t *out) {
  wasmtime_component_export_index_t *outer =
      wasmtime_component_instance_get_export_index(&g->instance, g->context, NULL, interface, n);
  if (outer == NULL) return false;
  wasmtime_component_export_index_t *inner =
      wasmtime_component_instance_get_export_index(&g->instance, g->context, outer, "run", 3);
  wasmtime_component_export_index_delete(outer);
  if (inner == NULL) return false;
  bool ok = wasmtime_component_instance_get_func(&g->instance, g->context, inner, out);
  wasmtime_component_export_index_delete(inner);
  return ok;
}

bool component_run(component_guest *g, const char *interface, size_t n, bool has_result, result *out, int *status) {
  wasmtime_component_func_t run;
  wasmtime_component_val_t answer;
  *status = 0;
  memset(&answer, 0, sizeof(answer));
  if (!find_run(g, interface, n, &run)) return false;
  size_t results = has_result ? 1 : 0;
  wasmtime_error_t *error = wasmtime_component_func_call(&run, g->context, NULL, 0, &answer, results);
  if (error == NULL) {
    error = wasmtime_component_func_post_return(&run, g->context);
    if (has_result) {
      if (error == NULL && answer.kind != COMPONENT_RESULT)
        error = wasmtime_error_new("the function run has another type than that of its interface");
      *status = answer.kind == COMPONENT_RESULT && !answer.of.result.is_ok;
      wasmtime_component_val_delete(&answer);
    }
  } else if (!g->stopped && wasmtime_error_exit_status(error, status)) {
    wasmtime_error_delete(error);
    error = NULL;
  }
  component_fill(g, out, error);
  return true;
}

void component_guest_delete(component_guest *g) {
  wasmtime_store_delete(g->store);
  free(g);
}

bool wasi_output(wasi_config_t *config, const char *out, const char *err) {
  return wasi_config_set_stdout_file(config, out) && wasi_config_set_stderr_file(config, err);
}
