// Package external runs a scheduler of another program where an integration test starts its own.
package external

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler"
)

const (
	namespace = "policysched"
	configMap = "policies"
)

// patience is how many times as long a test waits as it says, because the machine may be shared.
const patience = 4

func PollUntilContextTimeout(
	ctx context.Context, interval, timeout time.Duration, immediate bool, condition wait.ConditionWithContextFunc,
) error {
	return wait.PollUntilContextTimeout(ctx, interval, patience*timeout, immediate, condition)
}

func Poll(interval, timeout time.Duration, condition wait.ConditionFunc) error {
	return wait.Poll(interval, patience*timeout, condition)
}

func PollImmediate(interval, timeout time.Duration, condition wait.ConditionFunc) error {
	return wait.PollImmediate(interval, patience*timeout, condition)
}

// Start asks at the Unix socket EXTERNAL_SCHEDULER for a scheduler with a kubeconfig, and with the
// policy in the file EXTERNAL_POLICY in the cluster once for each profile, and returns when it
// decides. It ends with the context. A second scheduler of a cluster is further policies of the first
// one. The test's own scheduler is not started; without EXTERNAL_SCHEDULER it is. A line says that
// the test has a scheduler.
func Start(sched *scheduler.Scheduler, ctx context.Context) {
	fmt.Println("\n=== SCHEDULER")
	socket := os.Getenv("EXTERNAL_SCHEDULER")
	if socket == "" {
		go sched.Run(ctx)
		return
	}
	names := slices.Sorted(maps.Keys(sched.Profiles))
	if err := decide(ctx, socket, sched.Profiles[names[0]].KubeConfig(), names); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "No external scheduler")
	}
	context.AfterFunc(ctx, sched.SchedulingQueue.Close)
}

func decide(ctx context.Context, socket string, config *rest.Config, names []string) error {
	added, err := addPolicies(ctx, config, names)
	if err != nil || added {
		return err
	}
	return connect(ctx, socket, config)
}

// connect returns when the scheduler decides. It ends when the connection is closed.
func connect(ctx context.Context, socket string, config *rest.Config) error {
	path, err := writeKubeconfig(config)
	if err != nil {
		return err
	}
	connection, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() {
		connection.Close()
		os.Remove(path)
	})
	if _, err := fmt.Fprintln(connection, path); err != nil {
		return err
	}
	_, err = connection.Read(make([]byte, 1))
	return err
}

// addPolicies puts a policy of each name into the cluster. It says whether they were added to those
// of a scheduler that runs.
func addPolicies(ctx context.Context, config *rest.Config, names []string) (bool, error) {
	text, err := os.ReadFile(os.Getenv("EXTERNAL_POLICY"))
	if err != nil {
		return false, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false, err
	}
	object := metav1.ObjectMeta{Name: namespace}
	_, err = client.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: object}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	texts := map[string]string{}
	for _, name := range names {
		texts[name+".policy"] = strings.Replace(
			string(text), "policy "+v1.DefaultSchedulerName+" ", "policy "+name+" ", 1)
	}
	policies := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: texts}
	configMaps := client.CoreV1().ConfigMaps(namespace)
	_, err = configMaps.Create(ctx, policies, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return false, err
	}
	existing, err := configMaps.Get(ctx, configMap, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	added := false
	for key, text := range texts {
		if _, exists := existing.Data[key]; !exists {
			existing.Data[key] = text
			added = true
		}
	}
	if added {
		_, err = configMaps.Update(ctx, existing, metav1.UpdateOptions{})
	}
	return added, err
}

func writeKubeconfig(config *rest.Config) (string, error) {
	file, err := os.CreateTemp("", "external-scheduler-*.kubeconfig")
	if err != nil {
		return "", err
	}
	defer file.Close()
	api := clientcmdapi.NewConfig()
	api.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   config.Host,
		CertificateAuthority:     config.CAFile,
		CertificateAuthorityData: config.CAData,
	}
	api.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: config.BearerToken}
	api.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	api.CurrentContext = "test"
	return file.Name(), clientcmd.WriteToFile(*api, file.Name())
}
