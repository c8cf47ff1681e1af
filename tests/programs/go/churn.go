// churn.go - a Go program under memory pressure: garbage, goroutines, stacks that grow, preemption, maps and checksums.
//
//	churn MIB SECONDS
//
// Keeps MIB of checked blocks, replaces them at random in several goroutines, walks deep recursions, and lets the collector
// run. Every block is checked when it is read, and all of them at the end.
package main

import (
	"fmt"
	"hash/fnv"
	"math/rand"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const blockBytes = 16 << 10

type block struct {
	seed  uint64
	sum   uint64
	bytes []byte
	next  *block
}

func sumOf(seed uint64, bytes []byte) uint64 {
	h := fnv.New64a()
	h.Write([]byte(strconv.FormatUint(seed, 16)))
	h.Write(bytes)
	return h.Sum64()
}

func newBlock(r *rand.Rand, next *block) *block {
	b := &block{seed: r.Uint64(), bytes: make([]byte, blockBytes), next: next}
	fill := rand.New(rand.NewSource(int64(b.seed)))
	for i := 0; i < len(b.bytes); i += 64 {
		b.bytes[i] = byte(fill.Uint32())
	}
	b.sum = sumOf(b.seed, b.bytes)
	return b
}

func (b *block) check() {
	if got := sumOf(b.seed, b.bytes); got != b.sum {
		fmt.Printf("block %x: sum %x, expected %x\n", b.seed, got, b.sum)
		os.Exit(1)
	}
}

func deep(n int, r *rand.Rand) uint64 {
	var room [64]uint64
	for i := range room {
		room[i] = r.Uint64()
	}
	if n == 0 {
		return room[0]
	}
	below := deep(n-1, r)
	return below ^ room[n%64]
}

func main() {
	mib, _ := strconv.Atoi(os.Args[1])
	seconds, _ := strconv.Atoi(os.Args[2])
	total := mib << 20 / blockBytes
	const workers = 4
	var checked, spins atomic.Uint64
	var wait sync.WaitGroup
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	stop := make(chan struct{})
	// Computes without a call: only a preemption signal stops it for the collector.
	go func() {
		for n := uint64(0); ; n++ {
			if n&0xffffff == 0 {
				select {
				case <-stop:
					return
				default:
					spins.Add(1)
					time.Sleep(time.Millisecond)
				}
			}
		}
	}()
	for w := 0; w < workers; w++ {
		wait.Add(1)
		go func(w int) {
			defer wait.Done()
			r := rand.New(rand.NewSource(int64(w)))
			blocks := make([]*block, total/workers)
			index := make(map[uint64]*block)
			for i := range blocks {
				blocks[i] = newBlock(r, nil)
				index[blocks[i].seed] = blocks[i]
			}
			for time.Now().Before(end) {
				i := r.Intn(len(blocks))
				old := blocks[i]
				old.check()
				checked.Add(1)
				if index[old.seed] != old {
					fmt.Println("the map has lost a block")
					os.Exit(1)
				}
				if r.Intn(4) == 0 {
					delete(index, old.seed)
					old.next = nil
					blocks[i] = newBlock(r, blocks[r.Intn(len(blocks))])
					index[blocks[i].seed] = blocks[i]
				}
				if r.Intn(64) == 0 {
					done := make(chan uint64)
					go func() { done <- deep(500, rand.New(rand.NewSource(1))) }()
					if <-done != deep(500, rand.New(rand.NewSource(1))) {
						fmt.Println("a deep stack came back wrong")
						os.Exit(1)
					}
				}
			}
			for _, b := range blocks {
				b.check()
			}
		}(w)
	}
	wait.Wait()
	close(stop)
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	fmt.Printf("ok: %d blocks checked, %d collections, spun %t\n", checked.Load(), stats.NumGC, spins.Load() > 0)
}
