package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// unmarshalExact decodes JSON into a struct whose members are matched by exact
// case: encoding/json also takes "Task_ID" for "task_id", which would make two
// readers of one body see two things. Unknown members are ignored. Types with a
// decoder of their own keep it.
func unmarshalExact(data []byte, into any) error {
	return decodeExact(data, reflect.ValueOf(into).Elem())
}

var unmarshalerType = reflect.TypeFor[json.Unmarshaler]()

func decodeExact(data []byte, v reflect.Value) error {
	if v.Kind() == reflect.Pointer && v.Type().Elem().Kind() == reflect.Struct {
		if string(data) == "null" {
			v.SetZero()
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		return decodeExact(data, v.Elem())
	}
	if v.Kind() != reflect.Struct || v.Addr().Type().Implements(unmarshalerType) {
		return json.Unmarshal(data, v.Addr().Interface())
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return jsonError(err)
	}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		raw, ok := members[name]
		if name == "" || name == "-" || !ok {
			continue
		}
		if err := decodeExact(raw, v.Field(i)); err != nil {
			return fmt.Errorf("%s: %w", name, jsonError(err))
		}
	}
	return nil
}

// jsonError words a type mismatch for a person: without the names of Go types,
// and without the value.
func jsonError(err error) error {
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) {
		return fmt.Errorf("it is a JSON %s, which does not fit", mismatch.Value)
	}
	return err
}
