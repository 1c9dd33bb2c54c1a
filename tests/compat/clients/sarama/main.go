// sarama as one of the clients of the matrix (suites/clients.py).
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/IBM/sarama"
)

const (
	firstTimestamp = 1_700_000_000_000
	records        = 200
)

var bootstrap string

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func config() *sarama.Config {
	c := sarama.NewConfig()
	c.Version = sarama.MaxVersion
	c.Producer.Partitioner = sarama.NewManualPartitioner
	c.Producer.Return.Successes = true
	c.Producer.RequiredAcks = sarama.WaitForAll
	c.Consumer.IsolationLevel = sarama.ReadCommitted
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	return c
}

func encoder(b []byte) sarama.Encoder {
	if b == nil {
		return nil
	}
	return sarama.ByteEncoder(b)
}

func standard(topic string) []*sarama.ProducerMessage {
	shapes := [][2][]byte{
		{[]byte("key"), []byte("value")}, {nil, []byte("no key")}, {{}, {}},
		{[]byte("tombstone"), nil}, {nil, nil}, {{0xff}, {0}},
	}
	var all []*sarama.ProducerMessage
	for n := range records {
		m := &sarama.ProducerMessage{Topic: topic, Timestamp: time.UnixMilli(firstTimestamp + int64(n))}
		if n < len(shapes) {
			m.Key, m.Value = encoder(shapes[n][0]), encoder(shapes[n][1])
		} else {
			m.Key = encoder([]byte(fmt.Sprintf("k%d", n)))
			m.Value = encoder([]byte(strings.Repeat(fmt.Sprintf("compressible %d ", n), 20)))
		}
		if n == 0 {
			m.Headers = []sarama.RecordHeader{
				{Key: []byte("h"), Value: []byte("1")}, {Key: []byte("h"), Value: []byte("2")},
				{Key: []byte("empty"), Value: []byte{}}, {Key: []byte("null"), Value: nil},
			}
		}
		all = append(all, m)
	}
	return all
}

func produce(topic, codec string) {
	c := config()
	check(c.Producer.Compression.UnmarshalText([]byte(codec)))
	c.Producer.Flush.Frequency = 20 * time.Millisecond
	p, err := sarama.NewSyncProducer([]string{bootstrap}, c)
	check(err)
	check(p.SendMessages(standard(topic)))
	check(p.Close())
	fmt.Println("done")
}

func shown(b []byte) string {
	if b == nil {
		return "-"
	}
	return "x" + hex.EncodeToString(b)
}

func dump(topic string, partitions int) {
	cl, err := sarama.NewClient([]string{bootstrap}, config())
	check(err)
	consumer, err := sarama.NewConsumerFromClient(cl)
	check(err)
	for p := range partitions {
		partition, err := consumer.ConsumePartition(topic, int32(p), sarama.OffsetOldest)
		check(err)
		// It shows no control records: a log that ends in one is at its end when nothing comes.
		for quiet := false; !quiet; {
			select {
			case m := <-partition.Messages():
				fields := []string{
					strconv.Itoa(p), strconv.FormatInt(m.Offset, 10),
					strconv.FormatInt(m.Timestamp.UnixMilli(), 10), shown(m.Key), shown(m.Value),
				}
				for _, h := range m.Headers {
					fields = append(fields, string(h.Key)+"="+shown(h.Value))
				}
				fmt.Println(strings.Join(fields, " "))
			case <-time.After(3 * time.Second):
				quiet = true
			}
		}
	}
	fmt.Println("done")
}

type handler struct{ lock sync.Mutex }

func (h *handler) Setup(s sarama.ConsumerGroupSession) error {
	owned := 0
	for _, partitions := range s.Claims() {
		owned += len(partitions)
	}
	fmt.Println("assigned", owned)
	return nil
}

func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h *handler) ConsumeClaim(s sarama.ConsumerGroupSession, c sarama.ConsumerGroupClaim) error {
	for {
		select {
		case m, open := <-c.Messages():
			if !open {
				return nil
			}
			h.lock.Lock()
			fmt.Println("record", m.Partition, m.Offset)
			h.lock.Unlock()
			s.MarkMessage(m, "")
		case <-s.Context().Done():
			return nil
		}
	}
}

func group(topic, group string) {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	c := config()
	c.Consumer.Group.Session.Timeout = 6 * time.Second
	c.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	cg, err := sarama.NewConsumerGroup([]string{bootstrap}, group, c)
	check(err)
	for stop.Err() == nil {
		check(cg.Consume(stop, []string{topic}, &handler{}))
	}
	check(cg.Close())
}

func transactional(id string) sarama.SyncProducer {
	c := config()
	c.Producer.Idempotent = true
	c.Producer.Transaction.ID = id
	c.Net.MaxOpenRequests = 1
	p, err := sarama.NewSyncProducer([]string{bootstrap}, c)
	check(err)
	return p
}

func send(p sarama.SyncProducer, topic, value string) {
	_, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
	check(err)
}

func transactions(topic, id string) {
	p := transactional(id)
	for _, name := range []string{"first", "aborted", "second"} {
		check(p.BeginTxn())
		for n := range 5 {
			send(p, topic, fmt.Sprintf("%s%d", name, n))
		}
		if name == "aborted" {
			check(p.AbortTxn())
		} else {
			check(p.CommitTxn())
		}
	}
	check(p.Close())
	fmt.Println("done")
}

func fence(topic, id string) {
	first := transactional(id)
	check(first.BeginTxn())
	send(first, topic, "lost")
	second := transactional(id)
	check(second.BeginTxn())
	send(second, topic, "kept")
	check(second.CommitTxn())
	err := first.CommitTxn()
	if errors.Is(err, sarama.ErrProducerFenced) || errors.Is(err, sarama.ErrInvalidProducerEpoch) {
		fmt.Println("fenced")
	} else {
		fmt.Println("not fenced:", err)
	}
}

// By the names of the fields of its Config.
func defaults() {
	show("", reflect.ValueOf(*sarama.NewConfig()))
}

func show(name string, value reflect.Value) {
	if value.Kind() == reflect.Struct && name != "Version" {
		for _, field := range reflect.VisibleFields(value.Type()) {
			show(strings.TrimPrefix(name+"."+field.Name, "."), value.FieldByIndex(field.Index))
		}
	} else if value.CanInterface() && value.Kind() != reflect.Func {
		fmt.Printf("%s=%v\n", name, value.Interface())
	}
}

func version() {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/IBM/sarama" {
			fmt.Println(module.Version)
		}
	}
}

func main() {
	args := append(os.Args[1:], "", "")
	bootstrap = args[0]
	switch args[1] {
	case "version":
		version()
	case "defaults":
		defaults()
	case "produce":
		produce(args[2], args[3])
	case "dump":
		partitions, err := strconv.Atoi(args[3])
		check(err)
		dump(args[2], partitions)
	case "group":
		group(args[2], args[3])
	case "transactions":
		transactions(args[2], args[3])
	case "fence":
		fence(args[2], args[3])
	default:
		check(fmt.Errorf("no command %q", args[1]))
	}
}
