// Upstream is Kubernetes' own judge of a scheduler in one binary: its e2e tests of scheduling and
// of dynamic resource allocation, and kubemark's hollow node to run them on. The first argument
// says which program it is to be; everything after it is that program's own command line.
package main

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"k8s.io/component-base/cli"
	kubemark "k8s.io/kubernetes/cmd/kubemark/app"
	"k8s.io/kubernetes/test/e2e"
	"k8s.io/kubernetes/test/e2e/framework"
	"k8s.io/kubernetes/test/e2e/framework/config"
	"k8s.io/kubernetes/test/e2e/framework/testfiles"
	testingmanifests "k8s.io/kubernetes/test/e2e/testing-manifests"

	_ "k8s.io/kubernetes/test/e2e/dra"
	_ "k8s.io/kubernetes/test/e2e/framework/debug/init"
	_ "k8s.io/kubernetes/test/e2e/framework/node/init"
	_ "k8s.io/kubernetes/test/e2e/scheduling"
	_ "k8s.io/kubernetes/test/utils/ktesting/format"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	program := os.Args[1]
	os.Args = append([]string{program}, os.Args[2:]...)
	switch program {
	case "e2e":
		runE2E()
	case "hollow-node":
		os.Exit(cli.Run(kubemark.NewHollowNodeCommand()))
	default:
		usage()
	}
}

// runE2E does what TestMain of k8s.io/kubernetes/test/e2e does, which is not importable.
func runE2E() {
	config.CopyFlags(config.Flags, flag.CommandLine)
	framework.RegisterCommonFlags(flag.CommandLine)
	framework.RegisterClusterFlags(flag.CommandLine)
	testing.Init()
	flag.Parse()
	testfiles.AddFileSource(testingmanifests.GetE2ETestingManifestsFS())
	framework.AfterReadingAllFlags(&framework.TestContext)
	everything := func(_, _ string) (bool, error) { return true, nil }
	testing.Main(everything, []testing.InternalTest{{Name: "TestE2E", F: e2e.RunE2ETests}}, nil, nil)
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: upstream e2e|hollow-node [flag ...]")
	os.Exit(2)
}
