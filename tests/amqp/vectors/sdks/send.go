package main

import (
	"bytes"
	"context"
	"fmt"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
	"os"
	"time"
)

func main() {
	words := []string{"type", "source", "unit", "line", "site", "count", "celsius", "ok", "trace", "at"}
	p, err := azeventhubs.NewProducerClientFromConnectionString(os.Args[1], "", nil)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	for shape := 0; shape < 42; shape++ {
		pid := "0"
		opts := &azeventhubs.EventDataBatchOptions{PartitionID: &pid}
		if shape%5 == 0 {
			k := fmt.Sprintf("key-%d", shape)
			opts = &azeventhubs.EventDataBatchOptions{PartitionKey: &k}
		}
		b, err := p.NewEventDataBatch(ctx, opts)
		if err != nil {
			panic(err)
		}
		e := &azeventhubs.EventData{Body: bytes.Repeat([]byte("x"), 200)}
		if shape%3 == 0 {
			c := "application/json"
			e.ContentType = &c
		}
		if shape%4 == 0 {
			c := fmt.Sprintf("m-%d", shape)
			e.MessageID = &c
		}
		if shape%6 == 1 {
			e.CorrelationID = uint64(shape)
		}
		e.Properties = map[string]any{}
		for j := 0; j < 1+shape%8; j++ {
			name := words[(shape+3*j)%10]
			if shape > 20 {
				name += fmt.Sprint(shape)
			}
			var v any
			switch (shape + 2*j) % 9 {
			case 0:
				v = fmt.Sprintf("text %d", shape*j)
			case 1:
				v = int32(shape * 1000)
			case 2:
				v = 21.5 + float64(shape)/8
			case 3:
				v = j%2 == 0
			case 4:
				v = int64(1) << 40
			case 5:
				v = time.UnixMilli(1763600000123)
			case 6:
				v = uint32(shape)
			case 7:
				v = float32(0.5) + float32(j)
			default:
				v = "plain"
			}
			e.Properties[name] = v
		}
		if err := b.AddEventData(e, nil); err != nil {
			panic(err)
		}
		if err := p.SendEventDataBatch(ctx, b, nil); err != nil {
			panic(err)
		}
	}
	p.Close(ctx)
}
