package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
)

var groupVersion2 = schema.GroupVersion{Group: "stable.example.com", Version: "v2"}

const (
	// defaultSchedule is the name of the schedule that v1 shows.
	defaultSchedule = "default"
	// v2Fields is the annotation in which v1 keeps what only v2 can express.
	v2Fields = "stable.example.com/v2"
)

// CronTabV2 describes several schedules. It is the hub: v1 converts to it and from it.
type CronTabV2 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              CronTabV2Spec `json:"spec"`
	Status            CommonStatus  `json:"status,omitzero"`
}

// CronTabV2Spec is the desired state.
type CronTabV2Spec struct {
	Schedules []Schedule              `json:"schedules,omitempty"`
	Suspend   *bool                   `json:"suspend,omitempty"`
	RunPolicy RunPolicy               `json:"runPolicy,omitzero"`
	Template  batchv1.JobTemplateSpec `json:"template"`
}

// Schedule is a schedule with a name.
type Schedule struct {
	Name      string  `json:"name"`
	Schedule  string  `json:"schedule,omitempty"`
	TimeZone  *string `json:"timeZone,omitempty"`
	DstPolicy string  `json:"dstPolicy,omitempty"`
	Suspend   *bool   `json:"suspend,omitempty"`
}

// RunPolicy is how runs are started and retained.
type RunPolicy struct {
	ConcurrencyPolicy          string `json:"concurrencyPolicy,omitempty"`
	StartingDeadlineSeconds    *int64 `json:"startingDeadlineSeconds,omitempty"`
	SuccessfulJobsHistoryLimit *int32 `json:"successfulJobsHistoryLimit,omitempty"`
	FailedJobsHistoryLimit     *int32 `json:"failedJobsHistoryLimit,omitempty"`
}

// Hub marks the version that others convert to.
func (*CronTabV2) Hub() {}

// ConvertTo converts v1 to v2.
func (in *CronTab) ConvertTo(hub conversion.Hub) error {
	out := hub.(*CronTabV2)
	out.ObjectMeta = in.ObjectMeta
	if stored, ok := in.Annotations[v2Fields]; ok {
		if err := json.Unmarshal([]byte(stored), &out.Spec); err != nil {
			return fmt.Errorf("failed to read the annotation %s: %w", v2Fields, err)
		}
		out.Annotations = maps.Clone(in.Annotations)
		delete(out.Annotations, v2Fields)
	}
	index := slices.IndexFunc(out.Spec.Schedules, isDefault)
	if index < 0 {
		index = 0
		out.Spec.Schedules = slices.Insert(out.Spec.Schedules, 0, Schedule{Name: defaultSchedule})
	}
	schedule := &out.Spec.Schedules[index]
	schedule.Schedule, schedule.TimeZone, schedule.DstPolicy = in.Spec.Schedule, in.Spec.TimeZone, in.Spec.DstPolicy
	out.Spec.Suspend = in.Spec.Suspend
	out.Spec.RunPolicy = RunPolicy{
		ConcurrencyPolicy:          in.Spec.ConcurrencyPolicy,
		StartingDeadlineSeconds:    in.Spec.StartingDeadlineSeconds,
		SuccessfulJobsHistoryLimit: in.Spec.SuccessfulJobsHistoryLimit,
		FailedJobsHistoryLimit:     in.Spec.FailedJobsHistoryLimit,
	}
	job := &out.Spec.Template.Spec
	job.Template.Spec = in.Spec.JobTemplate
	job.BackoffLimit = in.Spec.BackoffLimit
	job.ActiveDeadlineSeconds = in.Spec.ActiveDeadlineSeconds
	job.TTLSecondsAfterFinished = in.Spec.TTLSecondsAfterFinished
	out.Status = in.Status.toV2()
	return nil
}

// ConvertFrom converts v2 to v1.
func (out *CronTab) ConvertFrom(hub conversion.Hub) error {
	in := hub.(*CronTabV2)
	out.ObjectMeta = in.ObjectMeta
	policy, job := in.Spec.RunPolicy, in.Spec.Template.Spec
	out.Spec = CronTabSpec{
		JobTemplate:                job.Template.Spec,
		Suspend:                    in.Spec.Suspend,
		ConcurrencyPolicy:          policy.ConcurrencyPolicy,
		StartingDeadlineSeconds:    policy.StartingDeadlineSeconds,
		SuccessfulJobsHistoryLimit: policy.SuccessfulJobsHistoryLimit,
		FailedJobsHistoryLimit:     policy.FailedJobsHistoryLimit,
		BackoffLimit:               job.BackoffLimit,
		ActiveDeadlineSeconds:      job.ActiveDeadlineSeconds,
		TTLSecondsAfterFinished:    job.TTLSecondsAfterFinished,
	}
	schedules := slices.Clone(in.Spec.Schedules)
	if index := slices.IndexFunc(schedules, isDefault); index >= 0 {
		schedule := &schedules[index]
		out.Spec.Schedule, out.Spec.TimeZone, out.Spec.DstPolicy = schedule.Schedule, schedule.TimeZone, schedule.DstPolicy
		// An entry elsewhere keeps its place in the list.
		*schedule = Schedule{Name: schedule.Name, Suspend: schedule.Suspend}
		if index == 0 && schedule.Suspend == nil {
			schedules = schedules[1:]
		}
	}
	job.Template.Spec = corev1.PodSpec{}
	job.BackoffLimit, job.ActiveDeadlineSeconds, job.TTLSecondsAfterFinished = nil, nil, nil
	template := batchv1.JobTemplateSpec{ObjectMeta: in.Spec.Template.ObjectMeta, Spec: job}
	if len(schedules) > 0 || !apiequality.Semantic.DeepEqual(template, batchv1.JobTemplateSpec{}) {
		stored, err := json.Marshal(CronTabV2Spec{Schedules: schedules, Template: template})
		if err != nil {
			return fmt.Errorf("failed to write the annotation %s: %w", v2Fields, err)
		}
		out.Annotations = maps.Clone(in.Annotations)
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, v2Fields, string(stored))
	}
	out.Status = in.Status.toV1()
	return nil
}

func isDefault(schedule Schedule) bool {
	return schedule.Name == defaultSchedule
}

// toV2 moves the times of the schedule default from the top to its entry.
func (in CronTabStatus) toV2() CommonStatus {
	out := in.CommonStatus
	if in.ScheduleTimes == (ScheduleTimes{}) {
		return out
	}
	index := slices.IndexFunc(out.Schedules, isOfDefault)
	if index < 0 {
		index = 0
		out.Schedules = slices.Insert(out.Schedules, 0, ScheduleStatus{Name: defaultSchedule})
	}
	out.Schedules[index].ScheduleTimes = in.ScheduleTimes
	return out
}

// toV1 moves the times of the schedule default from its entry to the top.
func (in CommonStatus) toV1() CronTabStatus {
	out := CronTabStatus{CommonStatus: in}
	index := slices.IndexFunc(in.Schedules, isOfDefault)
	if index < 0 {
		return out
	}
	out.Schedules = slices.Clone(in.Schedules)
	status := &out.Schedules[index]
	out.ScheduleTimes, status.ScheduleTimes = status.ScheduleTimes, ScheduleTimes{}
	if index == 0 && *status == (ScheduleStatus{Name: defaultSchedule}) {
		out.Schedules = out.Schedules[1:]
	}
	return out
}

func isOfDefault(status ScheduleStatus) bool {
	return status.Name == defaultSchedule
}
