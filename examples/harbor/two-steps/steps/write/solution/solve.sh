#!/bin/bash
seq 1 5 > numbers.txt
