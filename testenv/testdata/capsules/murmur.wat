;; A component of murmur:capsule/run@0.1.0 that says one thing.
(component
  (import "murmur:stream/events@0.1.0" (instance $events
    (export "emit-chunk" (func (param "chunk" string)))))
  (core module $memory-module (memory (export "memory") 1) (data (i32.const 16) "hello from murmur"))
  (core instance $libc (instantiate $memory-module))
  (core func $chunk (canon lower (func $events "emit-chunk") (memory $libc "memory")))
  (core module $main-module
    (import "events" "emit-chunk" (func $chunk (param i32 i32)))
    (func (export "run") (call $chunk (i32.const 16) (i32.const 17))))
  (core instance $main (instantiate $main-module (with "events" (instance (export "emit-chunk" (func $chunk))))))
  (func $run (canon lift (core func $main "run")))
  (instance $capsule (export "run" (func $run)))
  (export "murmur:capsule/run@0.1.0" (instance $capsule)))
