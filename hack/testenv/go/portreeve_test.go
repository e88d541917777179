package portreeve

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

var (
	cfg *rest.Config
	k8s client.Client
	// shared runs the controllers of all tests, unless kube-controller-manager does.
	shared *Env
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// run starts a control plane and the controllers for all tests.
func run(m *testing.M) (code int, err error) {
	plane := &envtest.Environment{}
	if cfg, err = plane.Start(); err != nil {
		return 0, fmt.Errorf("failed to start envtest: %w", err)
	}
	defer func() {
		if stopped := plane.Stop(); err == nil {
			err = stopped
		}
	}()
	if k8s, err = client.New(cfg, client.Options{}); err != nil {
		return 0, err
	}
	stop, err := runControllers()
	if err != nil {
		return 0, err
	}
	defer func() {
		if stopped := stop(); err == nil {
			err = stopped
		}
	}()
	return m.Run(), nil
}

// runControllers starts portreeve, or kube-controller-manager in its place, and returns a function
// that ends it.
func runControllers() (stop func() error, err error) {
	if manager := os.Getenv(managerVariable); manager != "" {
		return runManager(manager, cfg)
	}
	if shared, err = Run(cfg); err != nil {
		return nil, err
	}
	return shared.Stop, nil
}

// settled waits until the controllers have nothing left to do.
func settled(t *testing.T) {
	t.Helper()
	if shared != nil {
		shared.Settled(t)
	}
}

// TestCascade shows that a child is deleted after its owner (controller-runtime #1459).
func TestCascade(t *testing.T) {
	namespace := newNamespace(t)
	owner := create(t, configMap(namespace, "owner"))
	child := create(t, ownedBy(configMap(namespace, "child"), owner))
	other := create(t, configMap(namespace, "other"))
	remove(t, owner)
	settled(t)
	ensureGone(t, owner, child)
	ensureExists(t, other)
}

// TestForegroundDeletion shows that an owner is deleted after its dependents.
func TestForegroundDeletion(t *testing.T) {
	namespace := newNamespace(t)
	owner := create(t, configMap(namespace, "owner"))
	child := create(t, ownedBy(configMap(namespace, "child"), owner))
	remove(t, owner, client.PropagationPolicy(metav1.DeletePropagationForeground))
	settled(t)
	ensureGone(t, owner, child)
}

// TestOrphan shows that an orphaned child stays, without its owner.
func TestOrphan(t *testing.T) {
	namespace := newNamespace(t)
	owner := create(t, configMap(namespace, "owner"))
	child := create(t, ownedBy(configMap(namespace, "child"), owner))
	remove(t, owner, client.PropagationPolicy(metav1.DeletePropagationOrphan))
	settled(t)
	ensureGone(t, owner)
	ensureExists(t, child)
	if owners := child.GetOwnerReferences(); len(owners) > 0 {
		t.Errorf("the child still has the owners %v", owners)
	}
}

// TestNamespace shows that a deleted namespace goes, with all that is in it (controller-runtime
// #880).
func TestNamespace(t *testing.T) {
	name := newNamespace(t)
	content := create(t, configMap(name, "content"))
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	remove(t, namespace)
	settled(t)
	ensureGone(t, content, namespace)
}

// TestJobTTL shows that a finished Job is deleted after its TTL.
func TestJobTTL(t *testing.T) {
	namespace := newNamespace(t)
	expired := create(t, job(namespace, "expired", 0))
	fresh := create(t, job(namespace, "fresh", 3600))
	complete(t, expired)
	complete(t, fresh)
	settled(t)
	ensureGone(t, expired)
	ensureExists(t, fresh)
}

// TestPersistentVolumeClaim shows that a deleted claim that no Pod uses goes, although the
// apiserver protects it by a finalizer (controller-runtime #2854).
func TestPersistentVolumeClaim(t *testing.T) {
	claim := create(t, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: newNamespace(t), Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	})
	if len(claim.GetFinalizers()) == 0 {
		t.Fatal("the claim is not protected")
	}
	remove(t, claim)
	settled(t)
	ensureGone(t, claim)
}

// TestServiceAccount shows that a new namespace gets its ServiceAccount and the CA.
func TestServiceAccount(t *testing.T) {
	namespace := newNamespace(t)
	settled(t)
	ensureExists(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	ensureExists(t, configMap(namespace, "kube-root-ca.crt"))
}

// TestFinalizer shows that an object that keeps somebody else's finalizer does not count.
func TestFinalizer(t *testing.T) {
	namespace := newNamespace(t)
	kept := configMap(namespace, "kept")
	kept.Finalizers = []string{"example.com/kept"}
	object := create(t, kept)
	remove(t, object)
	settled(t)
	ensureExists(t, object)
	object.SetFinalizers(nil)
	if err := k8s.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

// TestUnsettled shows that the error lists what is left to do, and what waits.
func TestUnsettled(t *testing.T) {
	body := `{"left": ["a-controller: a"], "waiting": ["b-controller: b in 9 s"], "omitted": 3}`
	want := `the controllers have not settled within 2s; left to do:
  a-controller: a
waiting for a time, or for somebody else's finalizer:
  b-controller: b in 9 s
and 3 more`
	if got := unsettled(2*time.Second, []byte(body)).Error(); got != want {
		t.Errorf("got %s", got)
	}
}

// TestStart shows that the controllers of a test can be narrowed, and that their settings are those
// of the test.
func TestStart(t *testing.T) {
	env := Start(t, cfg, "--controllers=ttl-after-finished")
	env.Settled(t)
	if !strings.HasPrefix(env.Address(), "https://127.0.0.1:") {
		t.Errorf("the address is %s", env.Address())
	}
	if err := env.Stop(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := env.WaitUntilSettled(ctx); err == nil {
		t.Error("portreeve still answers after its end")
	}
}

// TestCancel shows that a wait ends with its context, although the answer takes longer.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		cancel()
		<-request.Context().Done()
	}))
	defer server.Close()
	env := &Env{address: server.URL, client: server.Client()}
	if err := env.WaitUntilSettled(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the wait ended with %v", err)
	}
}

// TestErrors shows that an error says what is wrong, and what to do.
func TestErrors(t *testing.T) {
	ensureError := func(words string, flags ...string) {
		t.Helper()
		env, err := Run(cfg, flags...)
		if err == nil {
			env.Stop()
			t.Fatal("portreeve has started")
		}
		if !strings.Contains(err.Error(), words) {
			t.Errorf("the error has no %q: %v", words, err)
		}
	}
	ensureError("testenv runs", "--controllers=gone")
	ensureError("--bad", "--bad")
	t.Setenv(binaryVariable, "/missing/portreeve")
	ensureError(binaryVariable + " is set to /missing/portreeve")
	t.Setenv(binaryVariable, "")
	t.Setenv("PATH", "")
	ensureError("found no portreeve: set " + binaryVariable)
}

func newNamespace(t *testing.T) string {
	t.Helper()
	namespace := create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}})
	return namespace.GetName()
}

func configMap(namespace, name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

func ownedBy[T client.Object](object T, owner client.Object) T {
	blocks := true
	object.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion:         "v1",
		Kind:               "ConfigMap",
		Name:               owner.GetName(),
		UID:                owner.GetUID(),
		BlockOwnerDeletion: &blocks,
	}})
	return object
}

func job(namespace, name string, ttl int32) *batchv1.Job {
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: batchv1.JobSpec{
			TTLSecondsAfterFinished: &ttl,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "main", Image: "example.com/main:1"}},
			}},
		},
	}
}

// complete writes the status that the Job controller would write.
func complete(t *testing.T, job *batchv1.Job) {
	t.Helper()
	now := metav1.Now()
	condition := func(kind batchv1.JobConditionType) batchv1.JobCondition {
		return batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: now}
	}
	job.Status = batchv1.JobStatus{
		StartTime:      &now,
		CompletionTime: &now,
		Conditions:     []batchv1.JobCondition{condition(batchv1.JobSuccessCriteriaMet), condition(batchv1.JobComplete)},
	}
	if err := k8s.Status().Update(t.Context(), job); err != nil {
		t.Fatalf("failed to complete Job %s: %v", job.Name, err)
	}
}

func create[T client.Object](t *testing.T, object T) T {
	t.Helper()
	if err := k8s.Create(t.Context(), object); err != nil {
		t.Fatalf("failed to create %s: %v", object.GetName(), err)
	}
	return object
}

func remove(t *testing.T, object client.Object, options ...client.DeleteOption) {
	t.Helper()
	if err := k8s.Delete(t.Context(), object, options...); err != nil {
		t.Fatalf("failed to delete %s: %v", object.GetName(), err)
	}
}

func ensureGone(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		var err error
		if !eventually(func() bool {
			err = k8s.Get(t.Context(), client.ObjectKeyFromObject(object), object)
			return apierrors.IsNotFound(err)
		}) {
			t.Errorf("%s is not gone: %v", object.GetName(), err)
		}
	}
}

func ensureExists(t *testing.T, object client.Object) {
	t.Helper()
	var err error
	if !eventually(func() bool {
		err = k8s.Get(t.Context(), client.ObjectKeyFromObject(object), object)
		return err == nil
	}) {
		t.Errorf("failed to read %s: %v", object.GetName(), err)
	}
}
