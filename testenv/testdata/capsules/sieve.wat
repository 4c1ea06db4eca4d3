;; Counts the primes below 65536 in a megabyte of memory, as a small program in C would.
(module
  (memory (export "memory") 17)
  (func (export "_start") (local $i i32) (local $j i32)
    (local.set $i (i32.const 2))
    (loop $next
      (if (i32.eqz (i32.load8_u (local.get $i)))
        (then
          (local.set $j (i32.mul (local.get $i) (i32.const 2)))
          (block $done
            (loop $mark
              (br_if $done (i32.ge_u (local.get $j) (i32.const 65536)))
              (i32.store8 (local.get $j) (i32.const 1))
              (local.set $j (i32.add (local.get $j) (local.get $i)))
              (br $mark)))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br_if $next (i32.lt_u (local.get $i) (i32.const 65536))))
    (memory.fill (i32.const 65536) (i32.const 1) (i32.const 1048576))))
