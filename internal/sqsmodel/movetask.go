package sqsmodel

import "time"

type moveTask struct{}

type statement struct{}

func (s *Server) nextEvent(q *queue) (time.Time, bool) { return q.nextEvent() }

func (s *Server) runTasks(now time.Time) {}
