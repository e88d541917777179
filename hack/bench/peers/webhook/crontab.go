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
	scheme.AddKnownTypeWithName(groupVersion2.WithKind("CronTab"), &CronTabV2{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	metav1.AddToGroupVersion(scheme, groupVersion2)
	return nil
}

// CronTab describes a schedule.
type CronTab struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              CronTabSpec   `json:"spec"`
	Status            CronTabStatus `json:"status,omitzero"`
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
	BackoffLimit               *int32         `json:"backoffLimit,omitempty"`
	ActiveDeadlineSeconds      *int64         `json:"activeDeadlineSeconds,omitempty"`
	TTLSecondsAfterFinished    *int32         `json:"ttlSecondsAfterFinished,omitempty"`
}

// CronTabStatus is the current state. The times of the schedule default are at the top.
type CronTabStatus struct {
	CommonStatus  `json:",inline"`
	ScheduleTimes `json:",inline"`
}

// CommonStatus has the fields that are the same in all versions.
type CommonStatus struct {
	Schedules          []ScheduleStatus         `json:"schedules,omitempty"`
	Active             []corev1.ObjectReference `json:"active,omitempty"`
	ActiveCount        *int32                   `json:"activeCount,omitempty"`
	LastSuccessfulTime *metav1.Time             `json:"lastSuccessfulTime,omitempty"`
	LastFailureTime    *metav1.Time             `json:"lastFailureTime,omitempty"`
	LastRunNow         *string                  `json:"lastRunNow,omitempty"`
	JobNameFormat      string                   `json:"jobNameFormat,omitempty"`
	ObservedGeneration *int64                   `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition       `json:"conditions,omitempty"`
}

// ScheduleStatus is the state of one schedule.
type ScheduleStatus struct {
	Name          string `json:"name"`
	ScheduleTimes `json:",inline"`
	Active        *int64 `json:"active,omitempty"`
	Suspended     *bool  `json:"suspended,omitempty"`
}

// ScheduleTimes are the times of a schedule.
type ScheduleTimes struct {
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`
	LastMissedTime   *metav1.Time `json:"lastMissedTime,omitempty"`
	MissedRuns       *int64       `json:"missedRuns,omitempty"`
	ObservedSchedule *string      `json:"observedSchedule,omitempty"`
	ScheduledSince   *metav1.Time `json:"scheduledSince,omitempty"`
}
