// Evaluates CEL selectors of devices as the API server and kube-scheduler do.
//
// Each line of the input is a JSON object with an expression, a driver and a device (resource.k8s.io/v1); each line of the output
// is the result, or the error.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type question struct {
	Expression string             `json:"expression"`
	Driver     string             `json:"driver"`
	Device     resourceapi.Device `json:"device"`
}

type answer struct {
	Matches   bool   `json:"matches"`
	Error     string `json:"error,omitempty"`
	Compiling bool   `json:"compiling,omitempty"`
}

func evaluate(asked question) answer {
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(asked.Expression, cel.Options{})
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Error(), Compiling: true}
	}
	matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device{
		Driver:                   asked.Driver,
		AllowMultipleAllocations: asked.Device.AllowMultipleAllocations,
		Attributes:               asked.Device.Attributes,
		Capacity:                 asked.Device.Capacity,
	})
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Matches: matches}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := answers.Encode(evaluate(asked)); err != nil {
			panic(err)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
