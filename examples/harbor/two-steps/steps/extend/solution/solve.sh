#!/bin/bash
cat more.txt >> numbers.txt
tac numbers.txt > turned.txt && mv turned.txt numbers.txt
