#include "_cgo_export.h"
#include "engine.h"

#include <stdlib.h>
#include <string.h>

typedef wasm_trap_t *(*unchecked_callback)(void *env, wasmtime_caller_t *caller, wasmtime_val_raw_t *args, size_t n);

extern void wasmtime_config_wasm_exceptions_set(wasm_config_t *, bool);
extern void wasmtime_config_wasm_stack_switching_set(wasm_config_t *, bool);
extern void wasmtime_config_wasm_custom_page_sizes_set(wasm_config_t *, bool);

typedef struct wasmtime_pooling_allocation_config_t pooling_t;
extern pooling_t *wasmtime_pooling_allocation_config_new(void);
extern void wasmtime_pooling_allocation_config_delete(pooling_t *);
extern void wasmtime_pooling_allocation_config_max_unused_warm_slots_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_linear_memory_keep_resident_set(pooling_t *, size_t);
extern void wasmtime_pooling_allocation_config_table_keep_resident_set(pooling_t *, size_t);
extern void wasmtime_pooling_allocation_config_total_memories_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_total_tables_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_total_core_instances_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_total_component_instances_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_total_gc_heaps_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_total_stacks_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_max_tables_per_module_set(pooling_t *, uint32_t);
extern void wasmtime_pooling_allocation_config_table_elements_set(pooling_t *, size_t);
extern void wasmtime_pooling_allocation_config_max_memory_size_set(pooling_t *, size_t);
extern void wasmtime_pooling_allocation_strategy_set(wasm_config_t *, const pooling_t *);

extern wasm_valtype_t *wasm_valtype_new(uint8_t kind);
extern void wasm_valtype_vec_new(wasm_valtype_vec_t *out, size_t n, wasm_valtype_t *const *types);
extern wasm_functype_t *wasm_functype_new(wasm_valtype_vec_t *params, wasm_valtype_vec_t *results);
extern void wasm_functype_delete(wasm_functype_t *);
extern void wasm_byte_vec_new(wasm_byte_vec_t *out, size_t n, const char *bytes);
extern void wasm_trap_message(const wasm_trap_t *, wasm_byte_vec_t *out);
extern void wasm_trap_delete(wasm_trap_t *);
extern bool wasmtime_trap_code(const wasm_trap_t *, uint8_t *code);
extern wasm_trap_t *wasmtime_trap_new(const char *text, size_t n);

extern wasmtime_linker_t *wasmtime_linker_new(wasm_engine_t *);
extern void wasmtime_linker_delete(wasmtime_linker_t *);
extern void wasmtime_linker_allow_shadowing(wasmtime_linker_t *, bool);
extern wasmtime_error_t *wasmtime_linker_define_wasi(wasmtime_linker_t *);
extern wasmtime_error_t *wasmtime_linker_define_func_unchecked(
    wasmtime_linker_t *, const char *module, size_t module_len, const char *name, size_t name_len,
    const wasm_functype_t *, unchecked_callback, void *env, void (*finalizer)(void *));
extern wasmtime_error_t *wasmtime_linker_instantiate_pre(
    const wasmtime_linker_t *, const wasmtime_module_t *, wasmtime_instance_pre_t **out);
extern bool wasmtime_linker_get(const wasmtime_linker_t *, wasmtime_context_t *, const char *module,
                                size_t module_len, const char *name, size_t name_len, wasmtime_extern_t *out);
extern void wasmtime_instance_pre_delete(wasmtime_instance_pre_t *);
extern wasmtime_error_t *wasmtime_instance_pre_instantiate(
    const wasmtime_instance_pre_t *, wasmtime_context_t *, wasmtime_instance_t *out, wasm_trap_t **trap);
extern wasmtime_error_t *wasmtime_instance_new(
    wasmtime_context_t *, const wasmtime_module_t *, const wasmtime_extern_t *imports, size_t n,
    wasmtime_instance_t *out, wasm_trap_t **trap);
extern bool wasmtime_instance_export_get(
    wasmtime_context_t *, const wasmtime_instance_t *, const char *name, size_t name_len, wasmtime_extern_t *out);

extern wasi_config_t *wasi_config_new(void);
extern void wasi_config_delete(wasi_config_t *);
extern bool wasi_config_set_argv(wasi_config_t *, size_t argc, const char *argv[]);
extern bool wasi_config_set_env(wasi_config_t *, size_t envc, const char *names[], const char *values[]);
extern void wasi_config_set_stdin_bytes(wasi_config_t *, wasm_byte_vec_t *);
extern bool wasi_config_preopen_dir(wasi_config_t *, const char *host, const char *guest, size_t dir, size_t file);

extern wasmtime_context_t *wasmtime_caller_context(wasmtime_caller_t *);
extern bool wasmtime_caller_export_get(wasmtime_caller_t *, const char *name, size_t name_len, wasmtime_extern_t *out);
extern uint8_t *wasmtime_memory_data(const wasmtime_context_t *, const wasmtime_memory_t *);
extern size_t wasmtime_memory_data_size(const wasmtime_context_t *, const wasmtime_memory_t *);
extern void wasmtime_global_get(wasmtime_context_t *, const wasmtime_global_t *, wasmtime_val_t *out);
extern wasmtime_error_t *wasmtime_func_call(wasmtime_context_t *, const wasmtime_func_t *, const wasmtime_val_t *args,
                                            size_t nargs, wasmtime_val_t *results, size_t nresults,
                                            wasm_trap_t **trap);
extern wasmtime_error_t *wasmtime_func_call_unchecked(wasmtime_context_t *, const wasmtime_func_t *,
                                                      wasmtime_val_raw_t *args, size_t n, wasm_trap_t **trap);

char *error_text(wasmtime_error_t *error) {
  wasm_byte_vec_t text;
  if (error == NULL) return NULL;
  wasmtime_error_message(error, &text);
  char *copy = calloc(1, text.size + 1);
  if (copy != NULL) memcpy(copy, text.data, text.size);
  wasm_byte_vec_delete(&text);
  wasmtime_error_delete(error);
  return copy;
}

void config_harden(wasm_config_t *config) {
  wasmtime_config_wasm_exceptions_set(config, false);
  wasmtime_config_wasm_stack_switching_set(config, false);
  wasmtime_config_wasm_custom_page_sizes_set(config, false);
}

void config_pool(wasm_config_t *config, const pool *p) {
  pooling_t *pooling = wasmtime_pooling_allocation_config_new();
  wasmtime_pooling_allocation_config_max_unused_warm_slots_set(pooling, p->guests);
  wasmtime_pooling_allocation_config_linear_memory_keep_resident_set(pooling, p->memory_resident);
  wasmtime_pooling_allocation_config_table_keep_resident_set(pooling, p->table_resident);
  wasmtime_pooling_allocation_config_total_memories_set(pooling, p->guests);
  wasmtime_pooling_allocation_config_total_tables_set(pooling, p->guests * p->tables);
  // Each guest and its forwarder.
  wasmtime_pooling_allocation_config_total_core_instances_set(pooling, 2 * p->guests);
  // There are no components, no heaps of the GC proposal, no async calls.
  wasmtime_pooling_allocation_config_total_component_instances_set(pooling, 0);
  wasmtime_pooling_allocation_config_total_gc_heaps_set(pooling, 0);
  wasmtime_pooling_allocation_config_total_stacks_set(pooling, 0);
  wasmtime_pooling_allocation_config_max_tables_per_module_set(pooling, p->tables);
  wasmtime_pooling_allocation_config_table_elements_set(pooling, p->elements);
  wasmtime_pooling_allocation_config_max_memory_size_set(pooling, p->memory);
  wasmtime_pooling_allocation_strategy_set(config, pooling);
  wasmtime_pooling_allocation_config_delete(pooling);
}

char *linker_new(wasm_engine_t *engine, wasmtime_linker_t **out) {
  *out = wasmtime_linker_new(engine);
  wasmtime_linker_allow_shadowing(*out, true);
  return error_text(wasmtime_linker_define_wasi(*out));
}

// host is called by a guest. env is the function's number.
static wasm_trap_t *host(void *env, wasmtime_caller_t *caller, wasmtime_val_raw_t *args, size_t n) {
  wasmtime_context_t *context = wasmtime_caller_context(caller);
  guest *g = wasmtime_context_get_data(context);
  if (g->memory_state == 0) {
    wasmtime_extern_t item;
    g->memory_state = 2;
    if (wasmtime_caller_export_get(caller, "memory", 6, &item) && item.kind == EXTERN_MEMORY) {
      g->memory = item.of.memory;
      g->memory_state = 1;
    }
  }
  uint8_t *data = NULL;
  size_t size = 0;
  if (g->memory_state == 1) {
    data = wasmtime_memory_data(context, &g->memory);
    size = wasmtime_memory_data_size(context, &g->memory);
  }
  if (goHost(g->handle, (uintptr_t)env, args, n, data, size) == 0) return NULL;
  if (g->pending != NULL) {
    wasm_trap_t *trap = g->pending;
    g->pending = NULL;
    return trap;
  }
  g->stopped = true;
  return wasmtime_trap_new("stopped by the host", 19);
}

// kinds turns "iiI" (i32 i32 i64) into a vector of types.
static void kinds(const char *letters, wasm_valtype_vec_t *out) {
  wasm_valtype_t *types[16];
  size_t n = 0;
  for (; letters[n] != 0 && n < 16; n++) types[n] = wasm_valtype_new(letters[n] == 'I' ? 1 : 0);
  wasm_valtype_vec_new(out, n, types);
}

char *linker_define(wasmtime_linker_t *linker, const char *module, size_t module_len, const char *name,
                    size_t name_len, const char *params, const char *results, uintptr_t id) {
  wasm_valtype_vec_t in, out;
  kinds(params, &in);
  kinds(results, &out);
  wasm_functype_t *type = wasm_functype_new(&in, &out);
  wasmtime_error_t *error = wasmtime_linker_define_func_unchecked(linker, module, module_len, name, name_len, type,
                                                                  host, (void *)id, NULL);
  wasm_functype_delete(type);
  return error_text(error);
}

char *linker_pre(const wasmtime_linker_t *linker, const wasmtime_module_t *module, wasmtime_instance_pre_t **out) {
  return error_text(wasmtime_linker_instantiate_pre(linker, module, out));
}

void linker_free(wasmtime_linker_t *linker) { wasmtime_linker_delete(linker); }

void pre_free(wasmtime_instance_pre_t *pre) { wasmtime_instance_pre_delete(pre); }

wasi_config_t *wasi_new(size_t argc, const char *argv, size_t envc, const char *env, const char *in, size_t in_len) {
  wasi_config_t *config = wasi_config_new();
  const char **list = calloc(argc + 2 * envc + 1, sizeof(char *));
  bool ok = list != NULL;
  if (ok) {
    for (size_t i = 0; i < argc; i++, argv += strlen(argv) + 1) list[i] = argv;
    for (size_t i = 0; i < envc; i++) {
      list[argc + i] = env, env += strlen(env) + 1;
      list[argc + envc + i] = env, env += strlen(env) + 1;
    }
    ok = wasi_config_set_argv(config, argc, list) &&
         wasi_config_set_env(config, envc, list + argc, list + argc + envc);
    free(list);
  }
  if (!ok) {
    wasi_config_delete(config);
    return NULL;
  }
  wasm_byte_vec_t bytes;
  wasm_byte_vec_new(&bytes, in_len, in);
  wasi_config_set_stdin_bytes(config, &bytes);
  return config;
}

// A grant is read-only or full, never a mix: two advisories of this line get
// around mixes.
bool wasi_preopen(wasi_config_t *config, const char *host, const char *name, bool writable) {
  size_t permissions = writable ? 3 : 1;
  return wasi_config_preopen_dir(config, host, name, permissions, permissions);
}

void wasi_free(wasi_config_t *config) { wasi_config_delete(config); }

// tick is called by the running guest at each epoch.
static wasmtime_error_t *tick(wasmtime_context_t *context, void *data, uint64_t *delta, uint8_t *kind) {
  (void)context;
  guest *g = data;
  if (goTick(g->handle) != 0) {
    g->stopped = true;
    return wasmtime_error_new("interrupted by the host");
  }
  *delta = 1;
  *kind = 0;
  return NULL;
}

guest *guest_new(wasm_engine_t *engine, uintptr_t handle, const wasmtime_linker_t *wasi,
                 const wasmtime_module_t *forwarder, int64_t memory, int64_t elements, int64_t instances) {
  guest *g = calloc(1, sizeof(guest));
  if (g == NULL) return NULL;
  g->handle = handle;
  g->wasi = wasi;
  g->forwarder = forwarder;
  g->store = wasmtime_store_new(engine, g, NULL);
  g->context = wasmtime_store_context(g->store);
  // One more instance than the guest is granted, for the forwarder.
  wasmtime_store_limiter(g->store, memory, elements, instances + 1, -1, 1);
  wasmtime_context_set_epoch_deadline(g->context, 1);
  wasmtime_store_epoch_deadline_callback(g->store, tick, g, NULL);
  return g;
}

// fill takes ownership of error and trap. Why the host stopped a guest is the
// host's to know: the engine's text, which has the guest's whole stack, would be
// most of what a short run costs.
static void fill(const guest *g, result *out, wasmtime_error_t *error, wasm_trap_t *trap) {
  memset(out, 0, sizeof(*out));
  if (g->stopped) {
    out->kind = RESULT_ERROR;
    if (trap != NULL) wasm_trap_delete(trap);
    if (error != NULL) wasmtime_error_delete(error);
    return;
  }
  if (trap != NULL) {
    wasm_byte_vec_t text;
    uint8_t code;
    out->kind = RESULT_TRAP;
    if (wasmtime_trap_code(trap, &code) && code == TRAP_STACK_OVERFLOW) {
      out->text = strdup("wasm trap: call stack exhausted"); // the engine adds some 10,000 lines
    } else {
      wasm_trap_message(trap, &text);
      out->text = calloc(1, text.size + 1);
      if (out->text != NULL) memcpy(out->text, text.data, text.size);
      wasm_byte_vec_delete(&text);
    }
    wasm_trap_delete(trap);
  }
  if (error != NULL) {
    free(out->text);
    out->kind = RESULT_ERROR;
    out->text = error_text(error);
  }
  if (out->text != NULL) out->text_len = strlen(out->text);
}

void guest_instantiate(guest *g, wasi_config_t *config, const wasmtime_instance_pre_t *pre, result *out) {
  wasm_trap_t *trap = NULL;
  wasmtime_error_t *error = wasmtime_context_set_wasi(g->context, config);
  if (error == NULL) error = wasmtime_instance_pre_instantiate(pre, g->context, &g->instance, &trap);
  g->instantiated = error == NULL && trap == NULL;
  fill(g, out, error, trap);
}

bool guest_call(guest *g, const char *name, size_t name_len, result *out) {
  wasmtime_extern_t item;
  wasm_trap_t *trap = NULL;
  if (!g->instantiated || !wasmtime_instance_export_get(g->context, &g->instance, name, name_len, &item) ||
      item.kind != EXTERN_FUNC)
    return false;
  wasmtime_error_t *error = wasmtime_func_call(g->context, &item.of.func, NULL, 0, NULL, 0, &trap);
  fill(g, out, error, trap);
  return true;
}

bool guest_global(guest *g, const char *name, size_t name_len, uint64_t *out) {
  wasmtime_extern_t item;
  wasmtime_val_t value;
  if (!g->instantiated || !wasmtime_instance_export_get(g->context, &g->instance, name, name_len, &item) ||
      item.kind != EXTERN_GLOBAL)
    return false;
  wasmtime_global_get(g->context, &item.of.global, &value);
  *out = (uint64_t)value.of.i64;
  return true;
}

// The engine's WASI functions find the memory among their caller's exports, so
// they cannot be called from the host. The forwarder is a module that imports
// the guest's memory, exports it again, and calls them.
static bool forwarder_ready(guest *g) {
  static const char *const names[] = {"fd_close", "fd_pwrite", "fd_readdir", "fd_renumber", "fd_write"};
  enum { count = sizeof(names) / sizeof(names[0]) };
  wasmtime_extern_t imports[count + 1];
  if (g->forwards) return true;
  if (g->memory_state != 1) return false;
  for (size_t i = 0; i < count; i++)
    if (!wasmtime_linker_get(g->wasi, g->context, "wasi_snapshot_preview1", 22, names[i], strlen(names[i]),
                             &imports[i]))
      return false;
  imports[count].kind = EXTERN_MEMORY;
  imports[count].of.memory = g->memory;
  wasm_trap_t *trap = NULL;
  wasmtime_error_t *error =
      wasmtime_instance_new(g->context, g->forwarder, imports, count + 1, &g->forward_instance, &trap);
  if (trap != NULL) wasm_trap_delete(trap);
  if (error != NULL) wasmtime_error_delete(error);
  return g->forwards = error == NULL && trap == NULL;
}

bool guest_forward(guest *g, const char *name, size_t name_len, wasmtime_val_raw_t *args, size_t n) {
  wasmtime_extern_t item;
  wasm_trap_t *trap = NULL;
  if (!forwarder_ready(g) ||
      !wasmtime_instance_export_get(g->context, &g->forward_instance, name, name_len, &item)) {
    g->pending = wasmtime_trap_new("cannot forward a WASI call", 26);
    return false;
  }
  wasmtime_error_t *error = wasmtime_func_call_unchecked(g->context, &item.of.func, args, n, &trap);
  if (error != NULL) {
    char *text = error_text(error);
    trap = wasmtime_trap_new(text == NULL ? "" : text, text == NULL ? 0 : strlen(text));
    free(text);
  }
  g->pending = trap;
  return trap == NULL;
}

void guest_delete(guest *g) {
  if (g->pending != NULL) wasm_trap_delete(g->pending);
  wasmtime_store_delete(g->store);
  free(g);
}
