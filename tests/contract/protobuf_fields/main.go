// Writes policysched/sandbox/apiserver/protobuf_fields.json: for each message that a client may send to the simulated API server, the
// numbers, names and types of its fields, read from the struct tags of k8s.io/api. Run in a module that requires k8s.io/api:
//
//	go run . > protobuf_fields.json
//
// A field is [json name, type, flags]. Types: s string, i integer, b boolean, y bytes, or the name of a message; "map:" in front for a map
// from strings. Flags: r repeated, z left out where it is zero (not a pointer, omitempty), n inlined into its parent.
package main

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var roots = map[string]any{
	"v1/Namespace": corev1.Namespace{}, "v1/Node": corev1.Node{}, "v1/Pod": corev1.Pod{}, "v1/ConfigMap": corev1.ConfigMap{},
	"v1/Event": corev1.Event{}, "v1/ServiceAccount": corev1.ServiceAccount{}, "v1/Service": corev1.Service{},
	"v1/PersistentVolume": corev1.PersistentVolume{}, "v1/PersistentVolumeClaim": corev1.PersistentVolumeClaim{},
	"v1/Binding": corev1.Binding{}, "events.k8s.io/v1/Event": eventsv1.Event{},
	"v1/ReplicationController": corev1.ReplicationController{}, "apps/v1/StatefulSet": appsv1.StatefulSet{},
	"apps/v1/Deployment": appsv1.Deployment{}, "apps/v1/ReplicaSet": appsv1.ReplicaSet{}, "batch/v1/Job": batchv1.Job{},
	"autoscaling/v1/Scale": autoscalingv1.Scale{}, "coordination.k8s.io/v1/Lease": coordinationv1.Lease{},
	"policy/v1/PodDisruptionBudget": policyv1.PodDisruptionBudget{}, "policy/v1/Eviction": policyv1.Eviction{},
	"scheduling.k8s.io/v1/PriorityClass": schedulingv1.PriorityClass{},
	"storage.k8s.io/v1/StorageClass":     storagev1.StorageClass{}, "storage.k8s.io/v1/CSINode": storagev1.CSINode{},
	"v1/Secret": corev1.Secret{}, "v1/ResourceQuota": corev1.ResourceQuota{}, "v1/LimitRange": corev1.LimitRange{},
	"apps/v1/DaemonSet":                 appsv1.DaemonSet{},
	"rbac.authorization.k8s.io/v1/Role": rbacv1.Role{}, "rbac.authorization.k8s.io/v1/RoleBinding": rbacv1.RoleBinding{},
	"rbac.authorization.k8s.io/v1/ClusterRole":        rbacv1.ClusterRole{},
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding": rbacv1.ClusterRoleBinding{},
	"authorization.k8s.io/v1/SelfSubjectAccessReview": authorizationv1.SelfSubjectAccessReview{},
	"authorization.k8s.io/v1/SubjectAccessReview":     authorizationv1.SubjectAccessReview{},
	"authorization.k8s.io/v1/SelfSubjectRulesReview":  authorizationv1.SelfSubjectRulesReview{},
	"authentication.k8s.io/v1/SelfSubjectReview":      authenticationv1.SelfSubjectReview{},
	"DeleteOptions": metav1.DeleteOptions{},
}

// Their JSON is not an object of their fields.
var special = map[string]bool{
	"Time": true, "MicroTime": true, "Quantity": true, "IntOrString": true, "Duration": true, "RawExtension": true, "FieldsV1": true,
}

var messages = map[string]map[string][3]string{}

func name(t reflect.Type) string {
	if special[t.Name()] {
		return t.Name()
	}
	parts := strings.Split(t.PkgPath(), "/")
	return strings.Join(parts[len(parts)-2:], ".") + "." + t.Name()
}

func typeOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return typeOf(t.Elem())
	case reflect.String:
		return "s"
	case reflect.Bool:
		return "b"
	case reflect.Int32, reflect.Int64, reflect.Int, reflect.Uint32, reflect.Uint64:
		return "i"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "y"
		}
		return typeOf(t.Elem())
	case reflect.Map:
		return "map:" + typeOf(t.Elem())
	case reflect.Struct:
		visit(t)
		return name(t)
	}
	panic(t.String())
}

func visit(t reflect.Type) {
	if special[t.Name()] || messages[name(t)] != nil {
		return
	}
	fields := map[string][3]string{}
	messages[name(t)] = fields
	for i := range t.NumField() {
		f := t.Field(i)
		tag := f.Tag.Get("protobuf")
		if tag == "" {
			continue
		}
		jsonName, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		flags := ""
		if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() != reflect.Uint8 {
			flags += "r"
		}
		if strings.Contains(options, "omitempty") && f.Type.Kind() != reflect.Pointer {
			flags += "z"
		}
		if strings.Contains(options, "inline") || jsonName == "" {
			flags += "n"
		}
		fields[strings.Split(tag, ",")[1]] = [3]string{jsonName, typeOf(f.Type), flags}
	}
}

func main() {
	kinds := map[string]string{}
	for kind, value := range roots {
		kinds[kind] = typeOf(reflect.TypeOf(value))
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"kinds": kinds, "messages": messages}); err != nil {
		panic(err)
	}
}
