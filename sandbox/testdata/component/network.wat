;; A WASI 0.2 command that makes a TCP socket, or resolves the name "localhost".
;; The test puts the function to call in its place. It exits with 100 and the
;; error code, or with 99 when it got what it asked for.
(component $C
  (import "wasi:sockets/network@0.2.0" (instance $network
    (export "network" (type (sub resource)))
    (type $ec (enum "unknown" "access-denied" "not-supported" "invalid-argument" "out-of-memory" "timeout"
      "concurrency-conflict" "not-in-progress" "would-block" "invalid-state" "new-socket-limit" "address-not-bindable"
      "address-in-use" "remote-unreachable" "connection-refused" "connection-reset" "connection-aborted"
      "datagram-too-large" "name-unresolvable" "temporary-resolver-failure" "permanent-resolver-failure"))
    (export "error-code" (type (eq $ec)))
    (type $family (enum "ipv4" "ipv6"))
    (export "ip-address-family" (type (eq $family)))))
  (alias export $network "network" (type $network-type))
  (alias export $network "error-code" (type $error-code))
  (alias export $network "ip-address-family" (type $family))
  (import "wasi:sockets/instance-network@0.2.0" (instance $instance
    (alias outer $C $network-type (type $n)) (export "network" (type $network (eq $n)))
    (export "instance-network" (func (result (own $network))))))
  (import "wasi:sockets/ip-name-lookup@0.2.0" (instance $lookup
    (alias outer $C $network-type (type $n)) (export "network" (type $network (eq $n)))
    (alias outer $C $error-code (type $e)) (export "error-code" (type $code (eq $e)))
    (export "resolve-address-stream" (type $stream (sub resource)))
    (export "resolve-addresses" (func (param "network" (borrow $network)) (param "name" string)
      (result (result (own $stream) (error $code)))))))
  (import "wasi:sockets/tcp@0.2.0" (instance $tcp (export "tcp-socket" (type (sub resource)))))
  (alias export $tcp "tcp-socket" (type $socket))
  (import "wasi:sockets/tcp-create-socket@0.2.0" (instance $create
    (alias outer $C $error-code (type $e)) (export "error-code" (type $code (eq $e)))
    (alias outer $C $family (type $f)) (export "ip-address-family" (type $fam (eq $f)))
    (alias outer $C $socket (type $s)) (export "tcp-socket" (type $sock (eq $s)))
    (export "create-tcp-socket" (func (param "address-family" $fam) (result (result (own $sock) (error $code)))))))
  (import "wasi:cli/exit@0.2.0" (instance $exit (export "exit-with-code" (func (param "status-code" u8)))))
  (core module $libc-module (memory (export "memory") 1) (data (i32.const 1024) "localhost"))
  (core instance $libc (instantiate $libc-module))
  (core func $the-network (canon lower (func $instance "instance-network")))
  (core func $resolve (canon lower (func $lookup "resolve-addresses") (memory $libc "memory")))
  (core func $create-socket (canon lower (func $create "create-tcp-socket") (memory $libc "memory")))
  (core func $exit-code (canon lower (func $exit "exit-with-code")))
  (core module $main-module
    (import "libc" "memory" (memory 1))
    (import "host" "network" (func $network (result i32)))
    (import "host" "resolve" (func $resolve (param i32 i32 i32 i32)))
    (import "host" "create" (func $create (param i32 i32)))
    (import "host" "exit" (func $exit (param i32)))
    (func $name (call $resolve (call $network) (i32.const 1024) (i32.const 9) (i32.const 64)))
    (func $socket (call $create (i32.const 0) (i32.const 64)))
    (func (export "run") (result i32)
      (call $WAY)
      (if (i32.eqz (i32.load8_u (i32.const 64))) (then (call $exit (i32.const 99))))
      (call $exit (i32.add (i32.const 100) (i32.load8_u (i32.const 68))))
      unreachable))
  (core instance $main (instantiate $main-module (with "libc" (instance $libc)) (with "host" (instance
    (export "network" (func $the-network)) (export "resolve" (func $resolve))
    (export "create" (func $create-socket)) (export "exit" (func $exit-code))))))
  (func $run (result (result)) (canon lift (core func $main "run")))
  (instance $command (export "run" (func $run)))
  (export "wasi:cli/run@0.2.0" (instance $command)))
