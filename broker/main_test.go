package broker_test

import (
	"testing"

	"starling/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
