// A controller for Foos on controller-runtime, written as the kubebuilder book recommends, without
// a client-side rate limit.
package main

import (
	"context"
	"flag"
	"os"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	flag.Parse()
	ctrl.SetLogger(zap.New())
	workers, err := strconv.Atoi(flag.Arg(0))
	if err != nil {
		ctrl.Log.Error(err, "give the number of workers")
		os.Exit(1)
	}
	if err := run(workers); err != nil {
		ctrl.Log.Error(err, "the manager ended")
		os.Exit(1)
	}
}

func run(workers int) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(AddToScheme(scheme))
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	// A negative value means no limit.
	config.QPS = -1
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(manager).
		For(&Foo{}).
		Owns(&appsv1.Deployment{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(&FooReconciler{Client: manager.GetClient(), Scheme: scheme})
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

// FooReconciler maintains a Deployment for each Foo.
type FooReconciler struct {
	client.Client
	Scheme *runtime.Scheme
}

// Reconcile creates or updates the Deployment of a Foo, and updates the Foo's status.
func (r *FooReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var foo Foo
	if err := r.Get(ctx, request.NamespacedName, &foo); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: foo.Namespace, Name: foo.Spec.DeploymentName},
	}
	_, err := controllerutil.CreateOrUpdate(ctx, r.Client, deployment, func() error {
		setDesired(&foo, deployment)
		return controllerutil.SetControllerReference(&foo, deployment, r.Scheme)
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	status := *foo.Status.DeepCopy()
	status.AvailableReplicas = deployment.Status.AvailableReplicas
	status.ObservedGeneration = foo.Generation
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type:               "Ready",
		Status:             metav1.ConditionTrue,
		Reason:             "Synced",
		ObservedGeneration: foo.Generation,
	})
	if equality.Semantic.DeepEqual(status, foo.Status) {
		return ctrl.Result{}, nil
	}
	foo.Status = status
	return ctrl.Result{}, r.Status().Update(ctx, &foo)
}

// setDesired sets the fields that a Foo determines, and keeps the fields that the apiserver
// defaulted.
func setDesired(foo *Foo, deployment *appsv1.Deployment) {
	labels := map[string]string{"app": "nginx", "controller": foo.Name}
	if deployment.Labels == nil {
		deployment.Labels = map[string]string{}
	}
	for label, value := range labels {
		deployment.Labels[label] = value
	}
	deployment.Spec.Replicas = &foo.Spec.Replicas
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	deployment.Spec.Template.Labels = labels
	if len(deployment.Spec.Template.Spec.Containers) != 1 {
		deployment.Spec.Template.Spec.Containers = make([]corev1.Container, 1)
	}
	container := &deployment.Spec.Template.Spec.Containers[0]
	container.Name = "nginx"
	container.Image = "nginx:latest"
}
