package main

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var groupVersion = schema.GroupVersion{Group: "stable.example.com", Version: "v1"}

// AddToScheme registers CronTabs in a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(groupVersion, &CronTab{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	return nil
}

// CronTab describes a schedule.
type CronTab struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              CronTabSpec `json:"spec"`
}

// CronTabSpec is the desired state.
type CronTabSpec struct {
	Schedule                   string         `json:"schedule"`
	JobTemplate                corev1.PodSpec `json:"jobTemplate"`
	TimeZone                   *string        `json:"timeZone,omitempty"`
	Suspend                    *bool          `json:"suspend,omitempty"`
	ConcurrencyPolicy          string         `json:"concurrencyPolicy,omitempty"`
	StartingDeadlineSeconds    *int64         `json:"startingDeadlineSeconds,omitempty"`
	SuccessfulJobsHistoryLimit *int32         `json:"successfulJobsHistoryLimit,omitempty"`
	FailedJobsHistoryLimit     *int32         `json:"failedJobsHistoryLimit,omitempty"`
	DstPolicy                  string         `json:"dstPolicy,omitempty"`
}

// DeepCopyObject copies a CronTab. It is written by hand, as controller-gen would generate it.
func (in *CronTab) DeepCopyObject() runtime.Object {
	out := new(CronTab)
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	in.Spec.JobTemplate.DeepCopyInto(&out.Spec.JobTemplate)
	out.Spec.TimeZone = copied(in.Spec.TimeZone)
	out.Spec.Suspend = copied(in.Spec.Suspend)
	out.Spec.StartingDeadlineSeconds = copied(in.Spec.StartingDeadlineSeconds)
	out.Spec.SuccessfulJobsHistoryLimit = copied(in.Spec.SuccessfulJobsHistoryLimit)
	out.Spec.FailedJobsHistoryLimit = copied(in.Spec.FailedJobsHistoryLimit)
	return out
}

func copied[T any](value *T) *T {
	if value == nil {
		return nil
	}
	out := *value
	return &out
}
