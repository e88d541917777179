package portreeve

import "sync"

// kept is the size of the log that errors quote.
const kept = 16 << 10

// lastBytes keeps the last bytes that were written.
type lastBytes struct {
	mutex sync.Mutex
	bytes []byte
}

func (l *lastBytes) Write(bytes []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.bytes = append(l.bytes, bytes...)
	if excess := len(l.bytes) - kept; excess > 0 {
		l.bytes = append([]byte(nil), l.bytes[excess:]...)
	}
	return len(bytes), nil
}

func (l *lastBytes) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return string(l.bytes)
}
