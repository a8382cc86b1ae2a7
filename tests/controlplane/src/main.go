// Controlplane is etcd, kube-apiserver, kube-scheduler and kube-controller-manager in one
// binary, for tests. The first argument says which program it is to be; everything after it
// is that program's own command line, so that
//
//	controlplane kube-apiserver --help
//
// prints what kube-apiserver --help prints. One binary, because the four share most of
// their code: one link step and 150 MB on disk instead of four of each.
package main

import (
	"fmt"
	"os"
	"sort"
	"strings"
	_ "time/tzdata" // CronJobs name time zones, as in the released kube-controller-manager

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

// The constructors register flags and feature gates in globals, so only the one that is
// asked for may be called.
var kubernetesPrograms = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllermanager.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	program := os.Args[1]
	os.Args = append([]string{program}, os.Args[2:]...)
	if program == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	newCommand, known := kubernetesPrograms[program]
	if !known {
		usage()
	}
	os.Exit(cli.Run(newCommand()))
}

func usage() {
	names := []string{"etcd"}
	for name := range kubernetesPrograms {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Fprintf(os.Stderr, "usage: controlplane %s [flag ...]\n", strings.Join(names, "|"))
	os.Exit(2)
}
