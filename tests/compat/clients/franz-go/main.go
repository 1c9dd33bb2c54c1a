// franz-go as one of the clients of the matrix (suites/clients.py).
package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
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

func client(opts ...kgo.Opt) *kgo.Client {
	opts = append(opts, kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	cl, err := kgo.NewClient(opts...)
	check(err)
	return cl
}

func standard(topic string) []*kgo.Record {
	shapes := [][2][]byte{
		{[]byte("key"), []byte("value")}, {nil, []byte("no key")}, {{}, {}},
		{[]byte("tombstone"), nil}, {nil, nil}, {{0xff}, {0}},
	}
	var all []*kgo.Record
	for n := range records {
		r := &kgo.Record{Topic: topic, Timestamp: time.UnixMilli(firstTimestamp + int64(n))}
		if n < len(shapes) {
			r.Key, r.Value = shapes[n][0], shapes[n][1]
		} else {
			r.Key = []byte(fmt.Sprintf("k%d", n))
			r.Value = []byte(strings.Repeat(fmt.Sprintf("compressible %d ", n), 20))
		}
		if n == 0 {
			r.Headers = []kgo.RecordHeader{
				{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")},
				{Key: "empty", Value: []byte{}}, {Key: "null", Value: nil},
			}
		}
		all = append(all, r)
	}
	return all
}

func produce(topic, codec string) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "zstd": kgo.ZstdCompression(),
		"snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(),
	}
	opts := []kgo.Opt{kgo.ProducerBatchCompression(codecs[codec]), kgo.ProducerLinger(20 * time.Millisecond)}
	cl := client(opts...)
	defer cl.Close()
	check(cl.ProduceSync(context.Background(), standard(topic)...).FirstErr())
	fmt.Println("done")
}

func shown(b []byte) string {
	if b == nil {
		return "-"
	}
	return "x" + hex.EncodeToString(b)
}

// ends are the last stable offsets: up to there a reader of committed records gets.
func ends(topic string, partitions int) map[int32]int64 {
	cl := client()
	defer cl.Close()
	found := map[int32]int64{}
	for p := range partitions {
		found[int32(p)] = end(cl, topic, int32(p))
	}
	return found
}

func end(cl *kgo.Client, topic string, partition int32) int64 {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, 1
	p := kmsg.NewListOffsetsRequestTopicPartition()
	p.Partition, p.Timestamp = partition, -1
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic, t.Partitions = topic, []kmsg.ListOffsetsRequestTopicPartition{p}
	req.Topics = append(req.Topics, t)
	for _, shard := range cl.RequestSharded(context.Background(), req) {
		check(shard.Err)
		answer := shard.Resp.(*kmsg.ListOffsetsResponse).Topics[0].Partitions[0]
		check(kerr.ErrorForCode(answer.ErrorCode))
		return answer.Offset
	}
	panic("no answer")
}

func dump(topic string, partitions int) {
	last := ends(topic, partitions)
	start := map[int32]kgo.Offset{}
	for p := range last {
		start[p] = kgo.NewOffset().At(0)
	}
	// Control records show how far it is: a log may end in one.
	opts := []kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: start}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
	}
	cl := client(opts...)
	defer cl.Close()
	for p, e := range last {
		if e == 0 {
			delete(last, p)
		}
	}
	for len(last) > 0 {
		fetches := cl.PollFetches(context.Background())
		check(fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= last[r.Partition] {
				delete(last, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			fields := []string{
				strconv.Itoa(int(r.Partition)), strconv.FormatInt(r.Offset, 10),
				strconv.FormatInt(r.Timestamp.UnixMilli(), 10), shown(r.Key), shown(r.Value),
			}
			for _, h := range r.Headers {
				fields = append(fields, h.Key+"="+shown(h.Value))
			}
			fmt.Println(strings.Join(fields, " "))
		})
	}
	fmt.Println("done")
}

func group(topic, group string) {
	stop, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	owned := map[int32]bool{}
	assigned := func(_ context.Context, _ *kgo.Client, now map[string][]int32) {
		for _, p := range now[topic] {
			owned[p] = true
		}
		fmt.Println("assigned", len(owned))
	}
	revoked := func(_ context.Context, _ *kgo.Client, gone map[string][]int32) {
		for _, p := range gone[topic] {
			delete(owned, p)
		}
		fmt.Println("assigned", len(owned))
	}
	cl := client(
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond), kgo.OnPartitionsAssigned(assigned),
		kgo.OnPartitionsRevoked(revoked), kgo.OnPartitionsLost(revoked),
	)
	for stop.Err() == nil {
		fetches := cl.PollFetches(stop)
		fetches.EachRecord(func(r *kgo.Record) { fmt.Println("record", r.Partition, r.Offset) })
	}
	cl.Close()
}

func transactions(topic, id string) {
	cl := client(kgo.TransactionalID(id))
	defer cl.Close()
	ctx := context.Background()
	for _, name := range []string{"first", "aborted", "second"} {
		check(cl.BeginTransaction())
		for n := range 5 {
			r := &kgo.Record{Topic: topic, Value: []byte(fmt.Sprintf("%s%d", name, n))}
			check(cl.ProduceSync(ctx, r).FirstErr())
		}
		check(cl.EndTransaction(ctx, kgo.TransactionEndTry(name != "aborted")))
	}
	fmt.Println("done")
}

func fence(topic, id string) {
	ctx := context.Background()
	first, second := client(kgo.TransactionalID(id)), client(kgo.TransactionalID(id))
	check(first.BeginTransaction())
	check(first.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("lost")}).FirstErr())
	check(second.BeginTransaction())
	check(second.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("kept")}).FirstErr())
	check(second.EndTransaction(ctx, kgo.TryCommit))
	err := first.EndTransaction(ctx, kgo.TryCommit)
	if errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch) {
		fmt.Println("fenced")
	} else {
		fmt.Println("not fenced:", err)
	}
	os.Exit(0)
}

// By the names of its options; where one has none by default, there is no limit.
func defaults() {
	cl := client()
	for name, opt := range map[string]any{
		"RequiredAcks": kgo.RequiredAcks, "DisableIdempotentWrite": kgo.DisableIdempotentWrite,
		"MaxProduceRequestsInflightPerBroker": kgo.MaxProduceRequestsInflightPerBroker,
		"ProducerLinger":                      kgo.ProducerLinger, "ProducerBatchMaxBytes": kgo.ProducerBatchMaxBytes,
		"MaxBufferedRecords": kgo.MaxBufferedRecords, "MaxBufferedBytes": kgo.MaxBufferedBytes,
		"ProducerBatchCompression": kgo.ProducerBatchCompression, "RecordRetries": kgo.RecordRetries,
		"RecordDeliveryTimeout": kgo.RecordDeliveryTimeout, "MetadataMaxAge": kgo.MetadataMaxAge,
		"ProduceRequestTimeout": kgo.ProduceRequestTimeout, "TransactionTimeout": kgo.TransactionTimeout,
		"FetchIsolationLevel": kgo.FetchIsolationLevel, "DisableAutoCommit": kgo.DisableAutoCommit,
		"AutoCommitInterval": kgo.AutoCommitInterval, "ConsumeResetOffset": kgo.ConsumeResetOffset,
		"SessionTimeout": kgo.SessionTimeout, "HeartbeatInterval": kgo.HeartbeatInterval,
		"RebalanceTimeout": kgo.RebalanceTimeout, "FetchMinBytes": kgo.FetchMinBytes,
		"FetchMaxBytes": kgo.FetchMaxBytes, "FetchMaxPartitionBytes": kgo.FetchMaxPartitionBytes,
		"FetchMaxWait": kgo.FetchMaxWait, "AllowAutoTopicCreation": kgo.AllowAutoTopicCreation,
		"DisableFetchCRCValidation": kgo.DisableFetchCRCValidation,
	} {
		fmt.Printf("%s=%v\n", name, cl.OptValue(opt))
	}
	for _, balancer := range cl.OptValue(kgo.Balancers).([]kgo.GroupBalancer) {
		fmt.Println("Balancers=" + balancer.ProtocolName())
	}
}

func version() {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "github.com/twmb/franz-go" {
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
